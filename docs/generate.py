"""Writes the generated blocks of the documentation from committed results: python docs/generate.py.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of BLOCKS.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import smollm2_record

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "benchmarks/README.md",
    "docs/cases.md",
    "docs/coding.md",
    "docs/integrations/same-name.md",
    "docs/pretrained.md",
    "docs/regime.md",
    "docs/reliability.md",
    "docs/replication.md",
    "docs/scaling.md",
    "docs/statistics.md",
    "docs/studies.md",
)
MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.S)


def read(name: str) -> Any:
    """A committed JSON file of benchmarks/."""
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(found: dict[str, float]) -> list[str]:
    """Median and range of a measurement, two digits after the point."""
    return [f"{found['median']:.2f}", f"{found['min']:.2f} to {found['max']:.2f}"]


# ---- README.md ------------------------------------------------------------------------------------------------------


def compared(page: str, what: str, first: str, second: str) -> tuple[str, str]:
    """Effect with interval, and finding, of a comparison on a page of findings."""
    cells = r"(\S+ \[[^\]]*\]) points[^|]*\|[^|]*\|[^|]*\| ([^|]*) \|"
    row = rf"{what}: {first} apart from {second} \| {cells}"
    if not (found := re.search(row, (ROOT / page).read_text())):
        raise ValueError(f"{page}: no comparison of {first} with {second}")
    return found[1], found[2]


def in_short() -> str:
    """The findings of the study of an hour in three sentences. ValueError if its records no longer say so."""
    page, curve, tie = "docs/hour.md", "area under the learning curve", "no difference larger than the margin"
    blocks = [compared(page, curve, f"MPO{at}", f"DAPO{at}")[1] for at in (", 1 update", "", ", 16 updates")]
    behind = [compared(page, curve, f"TEPO{at}", f"DAPO{at}")[0] for at in ("", ", 16 updates")]
    once, shown = compared(page, curve, "DAPO, 1 update", "DAPO")
    alone, _ = compared(page, "one round, reward", "sequence ratio", "token ratio")
    below = all(re.search(r", -[\d.]+\]", text) for text in [*behind, once])
    if blocks != [tie] * 3 or shown != "supported" or not below or "[+" not in alone:
        raise ValueError(f"{page}: the sentences in docs/generate.py do not hold any more")
    return (
        "**In short:** training with blocks of tokens (MPO) goes as well as with single tokens (DAPO), at 1, 4 and 16 "
        "updates per batch. How often a batch is used matters more: with one update instead of four it is "
        f"{once} points. Undecided, by intervals that exclude 0 and are not corrected: TEPO (sequence ratio, masked "
        f"KL) seems behind DAPO where rollouts are stale, {behind[0]} points at 4 updates and {behind[1]} at 16, "
        f"while its ratio alone seems ahead in one round, {alone}."
    )


def findings() -> str:
    """The answers of the study of an hour, and how many claims each published study decides."""
    answers = re.findall(r"^\* (.*?\?) (.*)$", (ROOT / "docs/hour.md").read_text(), flags=re.M)
    if not answers:
        raise ValueError("docs/hour.md: no lines `* question answer`")
    lines = [f"* **{question}** {answer}" for question, answer in answers]
    laptop, hour = claims_counted("docs/claims.md"), claims_counted("docs/hour.md")
    agree = [agreement(f"docs/{name}.txt") for name in ("replication", "hour")]
    said = (
        f"Of {hour[0]} claims of the papers, with the seeds of an hour: {hour[1]} ([which](docs/hour.md)). With those "
        f"of 20 minutes: {laptop[1]} ([which](docs/claims.md)). Compared with the latter, in a "
        f"[replication](docs/replication.md) of 20 minutes {agree[0]}, and in the study of an hour {agree[1]}."
    )
    return "\n".join([in_short(), "", *lines, "", said])


def claims_counted(page: str) -> tuple[str, str]:
    """How many claims there are, and how many of each verdict, as a page of claims says it."""
    counts = re.search(r"^Of (\d+) claims?: ([^.]*)\.", (ROOT / page).read_text(), flags=re.M)
    if not counts:
        raise ValueError(f"{page}: no line `Of N claims: …`")
    return counts[1], counts[2]


def agreement(page: str) -> str:
    """How many claims replicate, as `policygrain compare` says it."""
    return str(re.findall(r"^Of \d+ claims: (.*)\.$", (ROOT / page).read_text(), flags=re.M)[-1])


# ---- benchmarks/README.md -------------------------------------------------------------------------------------------


def training_step() -> str:
    """TRL's time per step over PolicyGrain's."""
    found = read("training_step")
    lengths = {
        "natural": "natural: responses end with an end-of-sequence token",
        "fixed": "fixed: `max_tokens` for all",
    }
    rows = []
    for name, text in lengths.items():
        scenario = found["scenarios"][name]
        rows.append([text, *spread(scenario["ratio_of_seconds_per_step"]), str(len(scenario["rounds"]))])
    return table(["response lengths", "TRL's seconds per step / PolicyGrain's", "range", "rounds"], rows)


def grading() -> str:
    """Answers graded per second, ordinary ones and with some that reach the time limit."""
    found = read("grading")
    rounds = found["ordinary"]["rounds"]
    rates = [turn["policygrain"]["answers_per_s"] for turn in rounds]
    ratios = [turn["ratio"] for turn in rounds]
    hostile = found["hostile"]
    header = ["answers", "answers per second", "range", "speed over a serial loop of math-verify"]
    ordinary = [
        "ordinary",
        f"{statistics.median(rates):,.0f}",
        f"{min(rates):,.0f} to {max(rates):,.0f} over {len(rounds)} rounds",
        f"{statistics.median(ratios):.1f}",
    ]
    slow = ["1% never end by themselves", f"{hostile['policygrain']['answers_per_s']:,.0f}", "one round"]
    return table(header, [ordinary, [*slow, f"{hostile['ratio']:.1f}"]]) + (
        f"\n\n{found['workers']} workers on {found['hardware']}."
    )


def objective() -> str:
    """Time of the objective, as an upper bound of its share of a training step."""
    found = read("objective_cost")
    seconds, shares = found["objective"]["seconds"], found["objective"]["share_at_most"]
    rows = [[f"`{name}`", f"{seconds[name]['median'] * 1e3:.2f} ms", f"{shares[name]:.4%}"] for name in seconds]
    head, shape = found["lm_head"], found["shape"]
    return table(["preset", "objective, metrics included", "share of a step, at most"], rows) + (
        f"\n\nThe output layer alone (hidden states to log-probabilities, and its gradient) takes "
        f"{head['seconds']['median']:.0f} s for the same {shape['responses'] * shape['tokens']:,} tokens, "
        f"scaled up from {len(head['seconds_per_chunk'])} chunks of {head['chunk_tokens']} tokens."
    )


def in_trl() -> str:
    """What PolicyGrainTrainer adds to TRL's step."""
    found = read("objective_cost")["in_trl"]
    rows = [
        [f"`{name}`", f"{row['added'] * 1e3:+.1f} ms", f"{row['share']:+.2%}"] for name, row in found["methods"].items()
    ]
    return table(["objective", "added to a step", "share of it"], rows) + (
        f"\n\nA step of TRL takes {found['seconds_per_step']:.2f} s."
    )


def programs() -> str:
    """Programs graded per second, and the plain interpreter beside them."""
    found = read("programs")
    rows = [
        [name, f"{row['median']:.0f}", f"{row['min']:.0f} to {row['max']:.0f}"]
        for name, row in found["per_second"].items()
    ]
    return table(["", "programs a second", "range"], rows) + (
        f"\n\n{found['workers']} workers on {found['hardware']}, by {found['isolation']}; the plain interpreter keeps "
        "nothing apart."
    )


def block_ratio() -> str:
    """Time of block ratios over that of the token ratio."""
    seconds = read("objective_cost")["block"]["seconds"]
    whole, stage = seconds["objective"], seconds["ratio_stage"]
    rows = [
        [name, *(f"{part[name]['median'] / part['token']['median']:.2f}" for part in (whole, stage))] for name in whole
    ]
    return table(["ratio", "whole objective, relative to the token ratio", "computing the ratio alone"], rows) + (
        f"\n\nComputing the token ratio takes {stage['token']['median'] * 1e3:.2f} ms, that of a block of 5 "
        f"{stage['block K=5']['median'] * 1e3:.2f} ms."
    )


def mtp_heads() -> str:
    """Cost of MPO's prediction heads."""
    found = read("future_heads")
    middle, ends = spread(found["ratio"])
    warm_up = found["warm_up"]
    batches = warm_up["seconds"] / found["seconds"]["backbone"]
    return (
        f"Scoring a batch and its updates take {middle} times as long with heads ({ends}), "
        f"and the warm-up of the heads {warm_up['seconds']:.1f} s, as long as scoring and updates of "
        f"{batches:.0f} batches without heads. The heads have {warm_up['parameters']:,} parameters beside the model's "
        f"{warm_up['model_parameters']:,}."
    )


def log_probs() -> str:
    """Time and memory of log-probabilities in blocks, beside those of all logits at once."""
    names = {"both": "log-probabilities and entropy", "loss": "log-probabilities"}
    rows = []
    for result in read("log_probs")["results"]:
        plain, blocks = result["plain"], result["blocks"]
        middle, ends = spread(blocks["speed_over_plain"])
        rows.append(
            [
                names[result["task"]],
                f"{plain['seconds']:.1f} s, {plain['extra_gib']:.2f} GiB",
                f"{blocks['seconds']:.1f} s, {blocks['extra_gib']:.2f} GiB",
                f"{middle} ({ends})",
                f"{blocks['memory_over_plain']:.3f}",
            ]
        )
    header = ["gradient through", "all logits, log_softmax", "in blocks", "relative speed", "relative memory"]
    return table(header, rows)


# ---- docs/ ----------------------------------------------------------------------------------------------------------


def planning() -> str:
    """Time and memory of Snakemake's planning."""
    few, many = (read("dry_run")[name] for name in ("few jobs", "many jobs"))
    rows = [
        ["jobs", f"{few['jobs']:,}", f"{many['jobs']:,}", "–"],
        ["`snakemake --dry-run all`", f"{few['seconds']} s", f"{many['seconds']} s", "20 s"],
        ["peak memory of Snakemake", f"{few['peak_mb']:,} MB", f"{many['peak_mb']:,} MB", "1,000 MB (tested)"],
    ]
    return table(["", "one engine for 20 models", "one engine per model, 8 sampling jobs for each", "target"], rows)


def bands() -> str:
    """Every candidate band with its area under the learning curve, and which was chosen."""
    found = json.loads((ROOT / "docs/bands.json").read_text())
    rows = []
    for ratio, candidates in found["candidates"].items():
        for band in candidates:
            chosen = found["chosen"][ratio] == {key: band[key] for key in ("low", "high")}
            means = [f"{statistics.mean(seeds.values()):.1f}" for seeds in band["areas"].values()]
            ends = f"{band['low']:g} / {band['high']:g}"
            rows.append([ratio, ends, *means, f"**{band['mean']:.1f}**" if chosen else f"{band['mean']:.1f}"])
    updates = next(iter(found["candidates"].values()))[0]["areas"]
    header = ["ratio", "band", *(f"{u} updates per batch" for u in updates), "mean"]
    return table(header, rows) + f"\n\nPoints, mean over seeds {', '.join(map(str, found['seeds']))}; chosen in bold."


def replication() -> str:
    """What `policygrain compare` says of the laptop study and its replication."""
    return f"```\n{(ROOT / 'docs/replication.txt').read_text().strip()}\n```"


def power() -> str:
    """Seeds and hours of a verdict at full size, with the spread of the study of an hour."""
    return (ROOT / "docs/power.txt").read_text().strip()


def plan_grain() -> str:
    """The plan of the study of the grain at full size."""
    return (ROOT / "docs/plan_grain.txt").read_text().strip()


def hour() -> str:
    """What `policygrain compare` says of the laptop study and that of an hour."""
    return f"```\n{(ROOT / 'docs/hour.txt').read_text().strip()}\n```"


def coverage() -> str:
    """Simulated coverage of 95% intervals, by number of seeds."""
    found = read("coverage")

    def ends(seeds: str, place: str, difference: bool) -> str:
        """Lowest and highest coverage of the cells of a kind."""
        parts = [t for t in found["tables"] if t["sd"] != found["skewed"] and (t["change"] is not None) == difference]
        shares = [share for part in parts for share in part[place].get(seeds, {}).values()]
        return f"{min(shares):.1%} to {max(shares):.1%}"

    rows = [
        [seeds, *(ends(seeds, place, difference) for difference in (False, True) for place in ("inner", "edges"))]
        for seeds in found["tables"][0]["inner"]
    ]
    header = ["seeds", "accuracy", "accuracy, edges", "difference", "difference, edges"]
    skewed = [
        share
        for part in found["tables"]
        if part["sd"] == found["skewed"]
        for row in (*part["inner"].values(), *part["edges"].values())
        for share in row.values()
    ]
    return table(header, rows) + (
        f"\n\n{found['draws']:,} draws per cell. Edges are cells in which fewer than {found['edge']} correct answers, "
        "or wrong ones, are expected of all seeds together; no short interval covers exactly 95% there.\n"
        f"With seeds so different that their accuracies are skewed (standard deviation {found['skewed']} in log-odds, "
        f"12 points at 50%): {min(skewed):.1%} at the lowest."
    )


def plan_laptop() -> str:
    """Predicted and measured seconds of the laptop study."""
    rows = [
        [row["rule"], f"{row['predicted']:,.0f}", f"{row['measured']:,.0f}", f"{row['ratio']:.2f}"]
        for row in read("plan_laptop")
        if row["phase"] == "all"
    ]
    return table(["rule", "predicted (s)", "measured (s)", "ratio"], rows)


def cases() -> str:
    """Every estimator without a clip in each exact case, and what the clip changes."""
    record = json.loads((ROOT / "docs/cases.json").read_text())
    baseline = record["baseline"]
    header = ["ratio", "push on x1", "cosine", "bias", "cosine of a batch", f"reward − {baseline}", "cosine with clip"]
    parts = []
    for case in record["cases"]:
        clipped = {e["name"]: e for e in case["estimators"] if e["clip"]}
        rows = [
            [
                e["name"],
                f"{e['push']:+.3f}",
                f"{e['cosine']:.2f}",
                f"{e['bias']:.2f}",
                f"{e['batch_cosine'][0]:.2f}",
                reward(e["difference"]),
                f"{clipped[e['name']]['cosine']:.2f}",
            ]
            for e in case["estimators"]
            if not e["clip"]
        ]
        title = f"**{case['title']}** (exact push on x1 {case['exact_push']:+.3f}). {case['prediction']}"
        parts += [title, table(header, rows)]
    return "\n\n".join([*parts, f"{record['seeds']} seeds, batches of {record['batch']} responses."])


def case_doses() -> str:
    """Difference to the token ratio by what is varied in each exact case."""
    record = json.loads((ROOT / "docs/cases.json").read_text())
    names = {
        "first": "tokens before the decision",
        "updates_per_batch": "updates per batch",
        "drift": "drift",
        "mismatch": "noise σ",
    }
    parts = []
    for case in record["cases"]:
        found = [e for e in case["estimators"] if not e["clip"] and e["name"] != record["baseline"]]
        rows = [[e["name"], *(reward(dose) for dose in e["doses"])] for e in found]
        header = [f"{names[case['dose']]}:", *(f"{dose:g}" for dose in case["doses"])]
        parts += [f"**{case['title']}**", table(header, rows)]
    return "\n\n".join(parts)


def reward(interval: list[float]) -> str:
    """A difference of expected rewards with half of its interval; exactly 0 where nothing differs."""
    mean, low, high = interval
    shown = f"{mean:+.4f}" if abs(mean) >= 5e-5 else "0.0000"
    return "0" if mean == low == high == 0 else f"{shown} ± {(high - low) / 2:.4f}"


KILLED = {
    "train": "training",
    "supersede": "training in the folder of a run with other settings",
    "evaluate": "evaluation",
    "track": "MLflow mirror, on a new store",
    "thaw": "unpacking an archive",
}


def kills() -> str:
    """Records after random SIGKILLs, by stage."""
    found = read("kills")
    rows = [
        [KILLED[name], *(str(counts[key]) for key in ("kills", "episodes", "differ"))]
        for name, counts in found["stages"].items()
    ]
    return table(["stage", "kills", "times run to its end", "differences"], rows) + f"\n\nOn {found['hardware']}."


# ---- docs/integrations/same-name.md ---------------------------------------------------------------------------------


def same_name() -> str:
    """What names mean in TRL and verl, from the record that a test holds."""
    record = json.loads((ROOT / "docs/integrations/same-name.json").read_text())
    rows = []
    for row in record["names"]:
        losses = " / ".join(f"{loss:.4f}" for loss in row["losses"]) if row["depends_on_division"] else "the same"
        paper = f"`{row['preset']}`"
        equals = "as published" if row["equals"] == f"{paper} as published" else row["equals"] or "–"
        trainer = f"{row['trainer']} {record['versions'][row['trainer'].lower()]}"
        rows.append(
            [trainer, f"`{row['setting']}`", paper, equals, f"{row['cosine']:.2f}", f"{row['norm']:.2f}", losses]
        )
    header = ["trainer", "setting", "preset", "equals", "cosine", "norm", "1 / 2 / 4 micro-batches"]
    return table(header, rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "same-name": same_name,
    "in-trl": in_trl,
    "programs": programs,
    "bands": bands,
    "findings": findings,
    "training-step": training_step,
    "grading": grading,
    "objective": objective,
    "block-ratio": block_ratio,
    "mtp-heads": mtp_heads,
    "log-probs": log_probs,
    "cases": cases,
    "case-doses": case_doses,
    "coverage": coverage,
    "kills": kills,
    "planning": planning,
    "replication": replication,
    "hour": hour,
    "power": power,
    "smollm2-cost": smollm2_record.cost,
    "smollm2-accuracy": smollm2_record.accuracy,
    "smollm2-learning": smollm2_record.learning,
    "smollm2-samples": smollm2_record.samples,
    "plan-grain": plan_grain,
    "plan-laptop": plan_laptop,
}


def fill(text: str) -> str:
    """A page with its blocks written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Rewrites the pages whose blocks have changed."""
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = fill(before)
        if after != before:
            path.write_text(after)
            print(page)


if __name__ == "__main__":
    main()
