"""Answers that look right and are wrong, and right ones that look different."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from policygrain.grading import MathGrader, Options

# Fields: kind, gold, answer, expected ("correct" or "wrong") and list_answer. docs/grading.md explains the choices.
CASES = [json.loads(line) for line in Path(__file__).with_name("adversarial.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    with MathGrader(workers=2, seconds=3) as opened:
        yield opened


def test_there_are_enough_cases_and_none_twice() -> None:
    assert len({(c["gold"], c["answer"], c.get("list_answer")) for c in CASES}) == len(CASES)
    assert sum(c["expected"] == "wrong" for c in CASES) >= 300


@pytest.mark.parametrize("kind", sorted({c["kind"] for c in CASES}))
def test_adversarial_answers(grader: MathGrader, kind: str) -> None:
    cases = [c for c in CASES if c["kind"] == kind]
    options = [Options(list_answer=c.get("list_answer", False)) for c in cases]
    outcomes = grader.compare([c["gold"] for c in cases], [c["answer"] for c in cases], options)
    different = [
        f"{c['gold']} <- {c['answer']!a}: {o}"
        for c, o in zip(cases, outcomes, strict=True)
        if (o == "correct") != (c["expected"] == "correct") or o in ("timeout", "error")
    ]
    assert not different
