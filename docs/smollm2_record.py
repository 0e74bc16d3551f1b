"""What the page on the pretrained model takes from its published record, docs/records/smollm2.zip."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any
from zipfile import ZipFile

RECORD = Path(__file__).parent / "records" / "smollm2.zip"
LAST = 10  # steps at the end of a run
SAMPLED = (
    ("plain_sum", 1),
    ("plain_sum", 2),
    ("word_problem", 1),
)  # benchmark and problem, chosen before the study ran
BEFORE, AFTER = "start/seed0", "runs/tepo/seed0"


def _lines(archive: ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(name).decode().splitlines()]


def accuracy() -> str:
    """The table of accuracies of the record, and its table of differences."""
    with ZipFile(RECORD) as archive:
        return archive.read("tables/results.md").decode().strip()


def useful_groups() -> str:
    """Shares of groups whose rewards differ, by arm: over the first and the last steps, all seeds together."""
    shares: dict[str, list[list[float]]] = {}
    with ZipFile(RECORD) as archive:
        for name in sorted(n for n in archive.namelist() if re.fullmatch(r"runs/[^/]+/seed\d+/metrics.jsonl", n)):
            rows = [row for row in _lines(archive, name) if "groups_drawn" in row]
            shares.setdefault(name.split("/")[1], []).append([_useful(row) for row in rows])
    lines = ["| method | first steps | last steps | seeds |", "| --- | ---: | ---: | ---: |"]
    for arm, runs in shares.items():
        ends = [100 * statistics.mean(share for run in runs for share in part(run)) for part in (_first, _last)]
        lines.append(f"| {arm} | {ends[0]:.0f}% | {ends[1]:.0f}% | {len(runs)} |")
    return (
        "\n".join(lines)
        + f"\n\nOver {LAST} steps. Groups that were sampled but not needed any more count as not useful."
    )


def _useful(row: dict[str, Any]) -> float:
    return float(1 - row["groups_dropped"] / row["groups_drawn"])


def _first(run: list[float]) -> list[float]:
    return run[:LAST]


def _last(run: list[float]) -> list[float]:
    return run[-LAST:]


def samples() -> str:
    """Three responses before and after, of problems that were chosen beforehand."""
    lines = ["| problem | before | after |", "| --- | --- | --- |"]
    with ZipFile(RECORD) as archive:
        for benchmark, number in SAMPLED:
            rows = [_lines(archive, f"{model}/evaluation/{benchmark}.jsonl") for model in (BEFORE, AFTER)]
            problem = list(dict.fromkeys(row["id"] for row in rows[0]))[number - 1]
            first = [next(row for row in found if row["id"] == problem) for found in rows]
            cells = [
                f"{first[0]['problem']} ({first[0]['gold']})",
                *(f"{r['response']} *{r['outcome']}*" for r in first),
            ]
            lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return "\n".join(lines)


def cost() -> str:
    """Hardware, precision and time of the runs."""
    with ZipFile(RECORD) as archive:
        summaries = [json.loads(archive.read(n)) for n in archive.namelist() if n.endswith("/summary.json")]
    made_with = {(s["environment"]["hardware"], s["environment"]["compute"]) for s in summaries}
    hours = sum(s["final"]["seconds"] for s in summaries) / 3600
    tokens = sum(s["final"]["tokens"] for s in summaries)
    kinds = "; ".join(f"{hardware}, {compute} passes" for hardware, compute in sorted(made_with))
    steps = summaries[0]["final"]["steps"]
    return f"{len(summaries)} runs of {steps} steps, {hours:.1f} core-hours, {tokens:,} sampled tokens ({kinds})."
