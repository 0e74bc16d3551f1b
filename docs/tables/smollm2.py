"""What the page on the pretrained model takes from its published record, docs/records/smollm2.zip."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from typing import Any
from zipfile import ZipFile

from .common import ROOT, read

RECORD = ROOT / "docs" / "records" / "smollm2.zip"
LAST = 10  # steps at the end of a run
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


def _lines(archive: ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(name).decode().splitlines()]


def accuracy() -> str:
    """The table of accuracies of the record, and its table of differences."""
    with ZipFile(RECORD) as archive:
        return archive.read("tables/results.md").decode().strip()


def learning() -> str:
    """By arm, first and last steps of all seeds: accuracy of samples, and share of groups whose rewards differ."""
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    with ZipFile(RECORD) as archive:
        for name in sorted(n for n in archive.namelist() if re.fullmatch(r"runs/[^/]+/seed\d+/metrics.jsonl", n)):
            rows = [row for row in _lines(archive, name) if "groups_drawn" in row]
            runs.setdefault(name.split("/")[1], []).append(rows)
    lines = [
        f"| method | accuracy, first {LAST} steps | last {LAST} | by seed | groups that differ, first | last |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for arm, found in runs.items():
        cells = [arm, _percent(found, _accuracy, first=True), _percent(found, _accuracy, first=False)]
        cells.append(", ".join(_percent([run], _accuracy, first=False) for run in found))
        cells += [_percent(found, _useful, first=True), _percent(found, _useful, first=False)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\nOf all responses that were sampled, those of dropped groups included."


def _percent(runs: list[list[dict[str, Any]]], measure: Callable[[dict[str, Any]], float], first: bool) -> str:
    values = [measure(row) for run in runs for row in (run[:LAST] if first else run[-LAST:])]
    return f"{100 * statistics.mean(values):.0f}%"


def _accuracy(row: dict[str, Any]) -> float:
    return float(row["sampled_accuracy"])


def _useful(row: dict[str, Any]) -> float:
    """Dynamic sampling also drops groups that are not needed any more, so this is a lower limit."""
    return float(1 - row["groups_dropped"] / row["groups_drawn"])


def samples() -> str:
    """Three responses before and after, of problems that were chosen beforehand."""
    lines = ["| " + " | ".join(["problem", *MODELS]) + " |", "| --- " * (1 + len(MODELS)) + "|"]
    with ZipFile(RECORD) as archive:
        for benchmark, number in SAMPLED:
            rows = [_lines(archive, f"{model}/evaluation/{benchmark}.jsonl") for model in MODELS.values()]
            problem = list(dict.fromkeys(row["id"] for row in rows[0]))[number - 1]
            first = [next(row for row in found if row["id"] == problem) for found in rows]
            cells = [
                f"{first[0]['problem']} ({first[0]['gold']})",
                *(f"{r['response']} *{r['outcome']}*" for r in first),
            ]
            lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return "\n".join(lines)


def precision() -> str:
    """Float32 weights after training with bfloat16 passes, evaluated in both precisions."""
    found = read("precision")
    lines = [
        "| weights | accuracy, float32 passes | bfloat16 passes | difference of log-probabilities (nats per token) |"
    ]
    lines += ["| --- | ---: | ---: | ---: |"]
    for key, name in (("before", "start model"), ("after", f"after {found['step']} steps")):
        row = found[key]
        cells = [f"{100 * row['accuracy'][dtype]:.0f}%" for dtype in ("float32", "bfloat16")]
        lines.append("| " + " | ".join([name, *cells, f"{row['difference']:.2f}"]) + " |")
    count = found["after"]["responses"]
    return "\n".join(lines) + f"\n\nFloat32 weights of `{found['run']}`, {count} responses to test problems."


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


BLOCKS: dict[str, Callable[[], str]] = {
    "smollm2-precision": precision,
    "smollm2-cost": cost,
    "smollm2-accuracy": accuracy,
    "smollm2-learning": learning,
    "smollm2-samples": samples,
}
