"""Answers like those in public bug reports on graders, each with what is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policygrain.grading import MathGrader, Options
from policygrain.grading.grade_file import grade

# Fields: kind, gold, prediction or completion, expected ("correct" or "wrong"), and perhaps extraction and problem.
CASES = [json.loads(line) for line in Path(__file__).with_name("reported.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("extraction", sorted({case.get("extraction", "boxed") for case in CASES}))
def test_reported_answers(extraction: str, tmp_path: Path) -> None:
    """All in one file for each protocol, as `policygrain grade` reads them."""
    cases = [case for case in CASES if case.get("extraction", "boxed") == extraction]
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    with MathGrader(workers=2, extraction=extraction) as grader:
        grade(file, out, grader, Options())
    graded = [json.loads(line) for line in out.read_text().splitlines()]
    different = [row for row in graded if row["correct"] != (row["expected"] == "correct") or row["status"] == "error"]
    assert not different
