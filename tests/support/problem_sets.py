"""A made-up problem set, a study with given sources, and the names of the recorded sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from policygrain.data import registry, set_files
from policygrain.data.fetch import blob_id
from policygrain.data.registry import Dataset
from policygrain.study import parse_study

from .small import SMALL

# The seven of the papers' table, and what else the folder of real sets holds.
SEVEN = ("aime24", "aime25", "amc23", "math500", "omni_math_rule", "olympiadbench", "minerva")

RECORDED = (*SEVEN, "amc12_83", "gsm8k", "gsm8k_train", "math_train", "dapo_math_17k")

ROWS = [
    {"n": i, "question": f"How much is {i} and {i}?", "solution": f"It is \\boxed{{{2 * i}}}."} for i in range(3000)
]

SOURCE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()

PAIRS = [(str(row["question"]), str(2 * i)) for i, row in enumerate(ROWS)]


def made_up(source: bytes = SOURCE, **changes: Any) -> Dataset:
    """A set that lives in a file with these bytes."""
    home = {"repository": "some/where", "commit": "0" * 40, "path": "data/a file.jsonl", "blob": blob_id(source)}
    fields = {
        "id": {"column": "n", "form": "made-up-{0}"},
        "problem": {"column": "question"},
        "answer": {"column": "solution", "convert": ["last_boxed"]},
        "checked": "by hand",
    }
    data: dict[str, Any] = {
        "title": "Made up",
        "version": 1,
        "role": "training",
        "home": home,
        "file": "made_up.jsonl",
        "content": set_files.content_digest(PAIRS),
        "count": len(ROWS),
        "fields": fields,
        "citation": "none",
        "licence": "none",
        "changelog": ["1: made up"],
    }
    return registry.parse("made_up", {**data, **changes})


def study_with(train: list[str], benchmarks: list[dict[str, object]], root: Path) -> Any:
    data = {**SMALL["data"], "train": train, "root": str(root)}
    model = {**SMALL["model"], "warm_start": {"steps": 0}}
    evaluation = {**SMALL["evaluation"], "benchmarks": benchmarks}
    return parse_study({**SMALL, "data": data, "model": model, "evaluation": evaluation}, Path("study.yaml"))


def raw(folder: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file).read_text().split("\n") if line]
