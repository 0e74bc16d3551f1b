"""Grading of files of answers."""

import json
import sys
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.grading import Options
from policygrain.grading.grade_file import grade

from . import read

# Lines and their statuses.
ROWS = [
    ({"gold": "1/2", "prediction": "\\frac12", "note": "é", "id": 3}, "correct"),
    ({"gold": 2, "completion": "\\boxed{1} \\boxed{2} 3"}, "correct"),
    ({"gold": "2", "completion": "2"}, "unparsable"),
    ({"gold": "2", "prediction": "\\boxed{3}", "completion": "\\boxed{2}"}, "incorrect"),
    ({"gold": "2", "prediction": None}, "unparsable"),
    ({"gold": "x", "prediction": "\ud800"}, "unparsable"),
    ({"gold": "2", "prediction": "3", "correct": "?", "status": "?"}, "incorrect"),
    ({"gold": "np.arcsin(10/13)", "prediction": "2"}, "unreadable_gold"),
    ({"gold": "{" * 30_000 + "2" + "}" * 30_000, "prediction": "2"}, "unreadable_gold"),
    ({"gold": "\ud800", "prediction": "2"}, "unreadable_gold"),
    ({"gold": "x+1", "prediction": "1+x"}, "correct"),
]


def test_lines_are_kept_and_graded(tmp_path, capsys):
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text("\n".join(json.dumps(row) for row, _ in ROWS) + "\n\n")
    command = ["grade", str(file), "--out", str(out), "--workers", "1"]
    assert main(command) == 0
    expected = [row | {"correct": status == "correct", "status": status} for row, status in ROWS]
    assert read(out) == expected
    assert "3 correct, 2 incorrect, 3 unparsable, 0 timeout, 0 error, 3 unreadable_gold" in capsys.readouterr().out
    assert main([*command, "--strict"]) == 2
    assert f"{file}, line 8: the gold answer 'np.arcsin" in capsys.readouterr().err


BAD = ["{", "[1]", '{"prediction": "1"}', '{"gold": "1"}', '{"gold": "1", "prediction": []}', '"\xff"', "[" * 9999]
BAD += ['{"gold": true, "prediction": "1"}', f'{{"gold": {"1" * 5000}, "prediction": "1"}}']
BAD += [f'{{"gold": "1", "prediction": {"1" * 5000}}}']


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named(tmp_path, line, grader):
    file = tmp_path / "answers.jsonl"
    file.write_bytes(b'{"gold": "1", "prediction": "1"}\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(UserError, match=f"{file}, line 2: "):
        grade(file, tmp_path / "graded.jsonl", grader, Options())
    assert not (tmp_path / "graded.jsonl").exists()


def test_nesting_at_the_limit_of_the_reader_or_of_the_writer_is_an_error_of_the_line(tmp_path, grader):
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 20, 10):
        file.write_text(f'{{"gold": "1", "prediction": "1", "x": {"[" * depth}{"]" * depth}}}\n')
        try:
            assert grade(file, out, grader, Options())["correct"] == 1
        except UserError as error:
            assert f"{file}, line 1: " in str(error) and "recursion" in str(error)


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("graded.jsonl", "empty.jsonl: is empty"),
        (".", ".: is a folder"),
        ("empty.jsonl/graded.jsonl", "empty.jsonl: cannot be written: "),
    ],
)
def test_a_mistake_is_one_line(out, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text("\n")
    assert main(["grade", "empty.jsonl", "--out", out]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
