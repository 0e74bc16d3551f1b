"""What the page on the pretrained model takes from the published records of its two studies."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from .common import ROOT, read

RECORD = ROOT / "docs" / "records" / "smollm2.zip"
PROGRAMS = ROOT / "docs" / "records" / "smollm2-code.zip"
EVALUATED = ROOT / "docs" / "records" / "smollm2-mbpp_plus.json"  # of the initial model, for the selection of problems
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


def accuracy(record: Path) -> str:
    """The table of accuracies of a record, and its table of differences."""
    with ZipFile(record) as archive:
        text = archive.read("tables/results.md").decode().strip()
    return text.replace("start model", "initial model")  # its name when the record was made


def learning(record: Path, steps: int) -> str:
    """By arm, first and last ``steps`` of all seeds: accuracy of samples, and share of groups whose rewards differ."""
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    with ZipFile(record) as archive:
        for name in sorted(n for n in archive.namelist() if re.fullmatch(r"runs/[^/]+/seed\d+/metrics.jsonl", n)):
            rows = [row for row in _lines(archive, name) if "sampled_accuracy" in row]
            runs.setdefault(name.split("/")[1], []).append(rows)
    lines = [
        f"| method | accuracy, first {steps} steps | last {steps} | by seed | groups that differ, first | last |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for arm, found in runs.items():
        first, last = ([run[:steps] for run in found], [run[-steps:] for run in found])
        cells = [arm, _percent(first, _accuracy), _percent(last, _accuracy)]
        cells.append(", ".join(_percent([run], _accuracy) for run in last))
        cells += [_percent(first, _useful), _percent(last, _useful)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\nOf all responses that were sampled, those of dropped groups included."


def _percent(runs: list[list[dict[str, Any]]], measure: Callable[[dict[str, Any]], float]) -> str:
    values = [measure(row) for run in runs for row in run]
    return f"{100 * statistics.mean(values):.0f}%"


def _accuracy(row: dict[str, Any]) -> float:
    return float(row["sampled_accuracy"])


def _useful(row: dict[str, Any]) -> float:
    """Dynamic sampling also drops groups beyond what a batch needs, so this is a lower limit; 0 if it dropped all."""
    return float(1 - row["groups_dropped"] / row["groups_drawn"]) if "groups_drawn" in row else 0.0


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
    for key, name in (("before", "initial model"), ("after", f"after {found['step']} steps")):
        row = found[key]
        cells = [f"{100 * row['accuracy'][dtype]:.0f}%" for dtype in ("float32", "bfloat16")]
        lines.append("| " + " | ".join([name, *cells, f"{row['difference']:.2f}"]) + " |")
    count = found["after"]["responses"]
    return "\n".join(lines) + f"\n\nFloat32 weights of `{found['run']}`, {count} responses to test problems."


def outcomes(record: Path) -> str:
    """Of each benchmark, the share of responses by outcome, before and after training."""
    lines = [
        "| benchmark | model | correct | incorrect | not Python | cut off | tokens |",
        "| --- | --- " + "| ---: " * 5 + "|",
    ]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ZipFile(record) as archive:
        for name in sorted(n for n in archive.namelist() if n.endswith("/evaluation/records.json")):
            model = "before" if name.startswith("start/") else "after"
            for row in json.loads(archive.read(name))["records"]:
                found.setdefault((row["benchmark"], model), []).append(row)
    for (benchmark, model), rows in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] != "before")):
        counts = {kind: sum(row["outcomes"].get(kind, 0) for row in rows) for kind in OUTCOMES}
        total = sum(sum(row["outcomes"].values()) for row in rows)
        shares = [f"{100 * count / total:.0f}%" for count in counts.values()]
        shares.append(f"{100 * statistics.mean(row['truncated'] for row in rows):.0f}%")
        tokens = sum(row["tokens"] for row in rows) / total
        lines.append("| " + " | ".join([benchmark, model, *shares, f"{tokens:.0f}"]) + " |")
    return "\n".join(lines) + "\n\nCut off: responses of the longest length, whatever their outcome."


def selected() -> str:
    """How many problems of MBPP+ the initial model solves sometimes, but not always."""
    (row,) = json.loads(EVALUATED.read_text())["records"]
    rates = row["per_problem"]
    sometimes = sum(0 < rate < 1 for rate in rates)
    return (
        f"{100 * row['accuracy']:.1f}% of the responses are correct, {row['n']} to each of {row['problems']} problems; "
        f"{sometimes} problems have both correct and wrong responses."
    )


def cost(record: Path) -> str:
    """Hardware, precision and time of the runs."""
    with ZipFile(record) as archive:
        summaries = [json.loads(archive.read(n)) for n in archive.namelist() if n.endswith("/summary.json")]
    made_with = {(s["environment"]["hardware"], s["environment"]["compute"]) for s in summaries}
    hours = sum(s["final"]["seconds"] for s in summaries) / 3600
    tokens = sum(s["final"]["tokens"] for s in summaries)
    kinds = "; ".join(f"{hardware}, {compute} passes" for hardware, compute in sorted(made_with))
    steps = summaries[0]["final"]["steps"]
    return f"{len(summaries)} runs of {steps} steps, {hours:.1f} core-hours, {tokens:,} sampled tokens ({kinds})."


OUTCOMES = ("correct", "incorrect", "unparsable")
BLOCKS: dict[str, Callable[[], str]] = {
    "smollm2-precision": precision,
    "smollm2-cost": partial(cost, RECORD),
    "smollm2-accuracy": partial(accuracy, RECORD),
    "smollm2-learning": partial(learning, RECORD, 10),
    "smollm2-samples": samples,
    "smollm2-code-selected": selected,
    "smollm2-code-cost": partial(cost, PROGRAMS),
    "smollm2-code-accuracy": partial(accuracy, PROGRAMS),
    "smollm2-code-learning": partial(learning, PROGRAMS, 5),
    "smollm2-code-outcomes": partial(outcomes, PROGRAMS),
}
