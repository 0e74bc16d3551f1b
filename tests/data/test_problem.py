"""Problem files: JSON Lines with the keys that say how answers are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.data.problem import read_problems
from policygrain.errors import UserError
from policygrain.grading import Options

GOOD = '{"id": "own-1", "problem": "1+1", "answer": "2"}'


def test_keys_that_say_how_answers_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"problem": "p", "answer": "1, 2", "list_answer": true, "absolute_tolerance": 0.1}\n')
    (problem,) = read_problems(path)
    assert problem.options == Options(list_answer=True, absolute_tolerance=0.1)


def test_null_is_a_missing_key(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": null, "problem": "p", "answer": 0, "source": null, "steps": null}\n' * 2)
    first, second = read_problems(path)
    assert (first.id, first.answer, first.source, first.steps, second.id) == ("own-00001", "0", "own", "", "own-00002")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem": "p", "answer": "1", "list_answer": "yes"}', "list_answer: expected .*, got"),
        ('{"problem": "p", "answer": "1", "relative_tolerance": "much"}', "relative_tolerance: expected .*, got"),
        ('{"problem": "p", "answer": "1", "absolute_tolerance": -1}', "absolute_tolerance: expected .*, got"),
        ('{"problem": "p", "tests": "assert f(1)"}', "no 'entry_point'"),
        ("{broken", "not JSON"),
        ('{"problem": "1+1"}', "no 'answer'; the keys are 'problem'"),
        ('{"problem": ["p"], "answer": "1"}', r"problem: expected a text or a number, got \['p'\]"),
        ('{"problem": "p", "answer": true}', "answer: expected a text or a number, got True"),
        # JSON allows it; no tokenizer can encode it.
        (r'{"problem": "\ud800", "answer": "1"}', r"contains half a character \(a lone surrogate\)"),
        (r'{"problem": "1", "answer": "\udfff"}', r"contains half a character \(a lone surrogate\)"),
    ],
)
def test_a_line_that_is_no_problem_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(UserError, match=rf"set\.jsonl, line 2: {message}"):
        read_problems(path)
