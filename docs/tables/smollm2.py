"""What the page on the pretrained model takes from the published records of its two studies."""

from __future__ import annotations

import functools
from typing import Any

from policygrain.figures.labels import labels
from policygrain.study import load_study

from .common import (
    ROOT,
    accuracies,
    areas,
    block,
    difference,
    endpoint_rows,
    files,
    read,
    steps,
    table,
)

RECORD, PROGRAMS, RATIOS = "smollm2", "smollm2-code", "smollm2-ratios"
# Planned: ratios without a clip, one switch at a time; then the recipes.
PAIRS = (("token", "none"), ("sequence", "none"), ("grpo", "tepo"), ("grpo", "mpo"), ("tepo", "mpo"))
SAMPLED = (
    ("plain_sum", 1),
    ("plain_sum", 2),
    ("word_problem", 1),
)  # benchmark and problem, chosen before the study ran
MODELS = {  # the last was chosen when the results were known
    "before": "start/seed0",
    "after, 8 updates": "runs/tepo/seed0",
    "after, 1 update": "runs/tepo+updates_per_batch=1/seed1",
}
OUTCOMES = ("correct", "incorrect", "unparsable")


@block("smollm2-accuracy", RECORD)
@block("smollm2-code-accuracy", PROGRAMS)
@block("smollm2-ratios-accuracy", RATIOS)
def accuracy(record: str) -> str:
    """The table of accuracies of a record, and its table of differences."""
    (text,) = files(record, "tables/results.md").values()
    return str(text).strip().replace("start model", "initial model")  # its name when the record was made


@block("smollm2-learning", RECORD, 10)
@block("smollm2-code-learning", PROGRAMS, 5)
def learning(record: str, window: int) -> str:
    """By arm, first and last steps of all seeds: accuracy of samples, and share of groups whose rewards differ."""
    rows = steps(record).dropna(subset="sampled_accuracy")
    # Dynamic sampling also drops groups beyond what a batch needs, so this is a lower limit; 0 if it dropped all.
    rows = rows.assign(useful=(1 - rows["groups_dropped"] / rows["groups_drawn"]).fillna(0.0))
    lines = []
    for arm, of_arm in rows.groupby("arm", sort=False):
        first, last = of_arm.groupby("seed").head(window), of_arm.groupby("seed").tail(window)
        by_seed = last.groupby("seed")["sampled_accuracy"].mean()
        shares = [first["sampled_accuracy"].mean(), last["sampled_accuracy"].mean()]
        useful = [first["useful"].mean(), last["useful"].mean()]
        cells = [f"{100 * share:.0f}%" for share in (*shares, *useful)]
        lines.append([str(arm), *cells[:2], ", ".join(f"{100 * share:.0f}%" for share in by_seed), *cells[2:]])
    header = ["method", f"accuracy, first {window} steps", f"last {window}", "by seed"]
    shown = table([*header, "groups that differ, first", "last"], lines, "lrrlrr")
    return shown + "\n\nOf all responses that were sampled, those of dropped groups included."


@block("smollm2-ratios")
def ratios() -> str:
    """Differences of the methods of the study of ratios on all endpoints."""
    name = labels(load_study(ROOT / f"studies/{RATIOS}.yaml"))
    ends = {
        "area": functools.partial(areas, RATIOS),
        "final, sampled": functools.partial(accuracies, RATIOS, column="per_problem"),
        "final, greedy": functools.partial(accuracies, RATIOS, column="greedy"),
    }
    rows = [
        (f"{name(one)} − {name(other)}", [difference(end(one), end(other)) for end in ends.values()])
        for one, other in PAIRS
    ]
    return table(["points", *ends], endpoint_rows(rows))


@block("smollm2-samples")
def samples() -> str:
    """Three responses before and after, of problems that were chosen beforehand."""
    lines = []
    for benchmark, number in SAMPLED:
        found = [
            rows
            for model in MODELS.values()
            for rows in files(RECORD, f"{model}/evaluation/{benchmark}.jsonl").values()
        ]
        problem = list(dict.fromkeys(row["id"] for row in found[0]))[number - 1]
        first = [next(row for row in rows if row["id"] == problem) for rows in found]
        cells = [f"{first[0]['problem']} ({first[0]['gold']})", *(f"{r['response']} *{r['outcome']}*" for r in first)]
        lines.append([" ".join(cell.replace("|", "\\|").split()) for cell in cells])
    return table(["problem", *MODELS], lines)


@block("smollm2-precision")
def precision() -> str:
    """Float32 weights after training with bfloat16 passes, evaluated in both precisions."""
    found = read("precision")
    lines = []
    for key, name in (("before", "initial model"), ("after", f"after {found['step']} steps")):
        accuracies = [f"{100 * found[key]['accuracy'][dtype]:.0f}%" for dtype in ("float32", "bfloat16")]
        lines.append([name, *accuracies, f"{found[key]['difference']:.2f}"])
    difference = "difference of log-probabilities (nats per token)"
    shown = table(["weights", "accuracy, float32 passes", "bfloat16 passes", difference], lines, "lrrr")
    return f"{shown}\n\nFloat32 weights of `{found['run']}`, {found['after']['responses']} responses to test problems."


@block("smollm2-code-outcomes")
def outcomes() -> str:
    """Of each benchmark, the share of responses by outcome, before and after training."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, evaluation in files(PROGRAMS, "*/evaluation/records.json").items():
        model = "before" if name.startswith("start/") else "after"
        for row in evaluation["records"]:
            found.setdefault((row["benchmark"], model), []).append(row)
    lines = []
    for (benchmark, model), rows in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] != "before")):
        total = sum(sum(row["outcomes"].values()) for row in rows)
        shares = [sum(row["outcomes"].get(kind, 0) for row in rows) / total for kind in OUTCOMES]
        shares.append(sum(row["truncated"] for row in rows) / len(rows))
        tokens = sum(row["tokens"] for row in rows) / total
        lines.append([benchmark, model, *(f"{100 * share:.0f}%" for share in shares), f"{tokens:.0f}"])
    header = ["benchmark", "model", "correct", "incorrect", "not Python", "cut off", "tokens"]
    return table(header, lines, "llrrrrr") + "\n\nCut off: responses of the longest length, whatever their outcome."


@block("smollm2-code-selected")
def selected() -> str:
    """How many problems of MBPP+ the initial model solves sometimes, but not always."""
    (row,) = read("smollm2-mbpp_plus", "docs/records")["records"]  # for the selection of problems
    sometimes = sum(0 < rate < 1 for rate in row["per_problem"])
    return (
        f"{100 * row['accuracy']:.1f}% of the responses are correct, {row['n']} to each of {row['problems']} problems; "
        f"{sometimes} problems have both correct and wrong responses."
    )


@block("smollm2-cost", RECORD)
@block("smollm2-code-cost", PROGRAMS)
@block("smollm2-ratios-cost", RATIOS)
def cost(record: str) -> str:
    """Hardware, precision and time of the runs."""
    summaries = list(files(record, "*/summary.json").values())
    made_with = {(s["environment"]["hardware"], s["environment"]["compute"]) for s in summaries}
    hours = sum(s["final"]["seconds"] for s in summaries) / 3600
    tokens = sum(s["final"]["tokens"] for s in summaries)
    kinds = "; ".join(f"{hardware}, {compute} passes" for hardware, compute in sorted(made_with))
    count = summaries[0]["final"]["steps"]
    return f"{len(summaries)} runs of {count} steps, {hours:.1f} core-hours, {tokens:,} sampled tokens ({kinds})."
