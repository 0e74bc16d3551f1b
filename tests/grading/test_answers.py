"""Answers that look right and are wrong, right ones that look different, and answers of public bug reports."""

import json
from typing import Any

import pytest

from policygrain.data.sources import load
from policygrain.grading import MathGrader, Options
from policygrain.grading.extraction import boxed
from policygrain.grading.grade_file import grade

from ..support.problem_sets import RECORDED
from . import read

# Fields: kind, gold, answer, expected ("correct" or "wrong") and options. docs/grading.md explains the choices.
ADVERSARIAL = read("adversarial.jsonl")
# Fields: kind, gold, prediction or completion, expected (also an outcome), and perhaps extraction and problem.
REPORTED = read("reported.jsonl")


def options(case: dict[str, Any]) -> Options:
    return Options(**{name: case[name] for name in case.keys() - {"kind", "gold", "answer", "expected"}})


def test_there_are_enough_cases_and_none_twice():
    assert len({(c["gold"], c["answer"], options(c)) for c in ADVERSARIAL}) == len(ADVERSARIAL)
    assert sum(c["expected"] == "wrong" for c in ADVERSARIAL) >= 300


@pytest.mark.parametrize("kind", sorted({c["kind"] for c in ADVERSARIAL}))
def test_adversarial_answers(grader, kind):
    cases = [c for c in ADVERSARIAL if c["kind"] == kind]
    outcomes = grader.compare([c["gold"] for c in cases], [c["answer"] for c in cases], [options(c) for c in cases])
    different = [
        f"{c['gold']} <- {c['answer']!a}: {o}"
        for c, o in zip(cases, outcomes, strict=True)
        if (o == "correct") != (c["expected"] == "correct") or o in ("timeout", "error")
    ]
    assert not different


@pytest.mark.parametrize("extraction", sorted({case.get("extraction", "boxed") for case in REPORTED}))
def test_reported_answers(extraction, tmp_path):
    """All in one file for each protocol, as `policygrain grade` reads them."""
    cases = [case for case in REPORTED if case.get("extraction", "boxed") == extraction]
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    with MathGrader(workers=2, extraction=extraction) as opened:
        grade(file, out, opened, Options())
    allowed = {"wrong": {"incorrect", "unparsable", "unreadable_gold"}}
    different = [row for row in read(out) if row["status"] not in allowed.get(row["expected"], {row["expected"]})]
    assert not different


@pytest.mark.release
def test_gold_answers_are_right(grader, benchmarks_folder):
    problems = [problem for name in RECORDED for problem in load(name, benchmarks_folder)]
    golds, options = [p.answer for p in problems], [p.options for p in problems]
    assert set(grader.compare(golds, [boxed(gold) or gold for gold in golds], options)) == {"correct"}
    assert grader.unreadable_golds(golds, options) == []
