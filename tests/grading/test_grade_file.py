"""Grading of files of answers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.grading import MathGrader, Options
from policygrain.grading.grade_file import grade

from . import read


def statuses(folder: Path, grader: MathGrader, rows: list[dict[str, Any]], strict: bool = False) -> list[str]:
    file, out = folder / "answers.jsonl", folder / "graded.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = grade(file, out, grader, Options(), strict)
    found = [row["status"] for row in read(out)]
    assert counts == {status: found.count(status) for status in counts}
    return found


def test_the_command(tmp_path, capsys):
    rows = [
        {"gold": "1/2", "prediction": "\\frac12", "note": "é", "id": 3},
        {"gold": 2, "completion": "\\boxed{1} \\boxed{2} 3"},
        {"gold": "2", "completion": "2"},
        {"gold": "2", "prediction": "\\boxed{3}", "completion": "\\boxed{2}"},
        {"gold": "2", "prediction": None},
        {"gold": "x", "prediction": "\ud800"},
        {"gold": "2", "prediction": "3", "correct": "?", "status": "?"},
    ]
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert main(["grade", str(file), "--out", str(out), "--workers", "1"]) == 0
    graded = read(out)
    added = ("correct", "status")
    assert [{k: v for k, v in g.items() if k not in added} for g in graded] == [
        {k: v for k, v in row.items() if k not in added} for row in rows
    ]
    expected = ["correct", "correct", "unparsable", "incorrect", "unparsable"]
    assert [g["status"] for g in graded][:5] == expected
    assert graded[5]["status"] in ("incorrect", "unparsable")
    assert graded[6]["status"] == "incorrect"
    assert [g["correct"] for g in graded] == [True, True, *[False] * 5]
    assert "2 correct" in capsys.readouterr().out


BAD = ["{", "[1]", '{"prediction": "1"}', '{"gold": "1"}', '{"gold": "1", "prediction": []}', '"\xff"', "[" * 9999]
BAD += ['{"gold": true, "prediction": "1"}', f'{{"gold": {"1" * 5000}, "prediction": "1"}}']
BAD += [f'{{"gold": "1", "prediction": {"1" * 5000}}}']


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named(tmp_path, line, capsys):
    file = tmp_path / "answers.jsonl"
    file.write_bytes(b'{"gold": "1", "prediction": "1"}\n' + line.encode("latin-1") + b"\n")
    assert main(["grade", str(file), "--out", str(tmp_path / "graded.jsonl")]) == 2
    assert f"{file}, line 2" in capsys.readouterr().err
    assert not (tmp_path / "graded.jsonl").exists()


def test_nesting_at_the_limit_of_the_reader_or_of_the_writer_is_an_error_of_the_line(tmp_path, grader):
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 20, 10):
        file.write_text(f'{{"gold": "1", "prediction": "1", "x": {"[" * depth}{"]" * depth}}}\n')
        try:
            assert grade(file, out, grader, Options())["correct"] == 1
        except UserError as error:
            assert f"{file}, line 1: " in str(error) and "recursion" in str(error)


def test_an_unreadable_gold_answer_ends_nothing_but_its_line(tmp_path, grader):
    rows = [
        {"gold": "2", "prediction": "2"},
        {"gold": "np.arcsin(10/13)", "prediction": "2"},
        {"gold": "{" * 30_000 + "2" + "}" * 30_000, "prediction": "2"},
        {"gold": "\ud800", "prediction": "2"},
        {"gold": "x+1", "prediction": "1+x"},
    ]
    bad = ["unreadable_gold"] * 3
    assert statuses(tmp_path, grader, rows) == ["correct", *bad, "correct"]
    with pytest.raises(UserError, match=r"answers\.jsonl, line 2: the gold answer 'np\.arcsin"):
        statuses(tmp_path, grader, rows, strict=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "empty.jsonl: is empty"),
        (["--out", "."], ".: is a folder"),
        (["--out", "empty.jsonl/graded.jsonl"], "empty.jsonl: cannot be written: "),
    ],
)
def test_a_mistake_is_one_line(options, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text("\n")
    assert main(["grade", "empty.jsonl", "--out", "graded.jsonl", *options]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
