"""Problem files: JSON Lines with the keys that say how answers are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.grading import Options
from policygrain.tasks.problem import read_problems


def test_keys_that_say_how_answers_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"problem": "p", "answer": "1, 2", "list_answer": true, "absolute_tolerance": 0.1}\n')
    (problem,) = read_problems(path)
    assert problem.options == Options(list_answer=True, absolute_tolerance=0.1)
    for wrong in ('"list_answer": "yes"', '"relative_tolerance": "much"', '"absolute_tolerance": -1'):
        path.write_text(f'{{"problem": "p", "answer": "1", {wrong}}}\n')
        with pytest.raises(UserError, match=rf"line 1: {wrong.split(chr(34))[1]}: .* is expected, got"):
            read_problems(path)
    path.write_text('{"problem": "p", "tests": "assert f(1)"}\n')
    with pytest.raises(UserError, match="line 1: no 'entry_point'"):
        read_problems(path)


def test_a_dataset_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n{broken\n")
    with pytest.raises(UserError, match=r"set\.jsonl, line 2: not JSON"):
        read_problems(path)
    path.write_text(json.dumps({"problem": "1+1"}) + "\n")
    with pytest.raises(UserError, match=r"line 1: no 'answer'; the keys are 'problem'"):
        read_problems(path)


@pytest.mark.parametrize("line", [r'{"problem": "\ud800", "answer": "1"}', r'{"problem": "1", "answer": "\udfff"}'])
def test_half_a_character_is_an_error_of_its_line(tmp_path: Path, line: str) -> None:
    """JSON allows it; no tokenizer can encode it."""
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"problem": "1+1", "answer": "2"}) + "\n" + line + "\n")
    with pytest.raises(UserError, match=r"set\.jsonl, line 2: half a character \(a lone surrogate\)"):
        read_problems(path)
