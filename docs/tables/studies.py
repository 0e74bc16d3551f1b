"""Tables and sentences from the records of published studies."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable

from .common import ROOT, table


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


def plan_papers() -> str:
    """The plans of the papers' settings."""
    return (ROOT / "docs/plan_papers.txt").read_text().strip()


def plan_grain() -> str:
    """The plan of the study of the grain at full size."""
    return (ROOT / "docs/plan_grain.txt").read_text().strip()


def hour() -> str:
    """What `policygrain compare` says of the laptop study and that of an hour."""
    return f"```\n{(ROOT / 'docs/hour.txt').read_text().strip()}\n```"


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


BLOCKS: dict[str, Callable[[], str]] = {
    "bands": bands,
    "findings": findings,
    "cases": cases,
    "case-doses": case_doses,
    "replication": replication,
    "hour": hour,
    "power": power,
    "plan-grain": plan_grain,
    "plan-papers": plan_papers,
}
