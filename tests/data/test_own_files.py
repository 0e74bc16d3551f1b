"""What `policygrain data check` says about a user's own file, with inputs like those in public reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.cli import main

from ..support.files import write_lines

# Case → gold answers, exit status and what is said.
REPORTED: dict[str, tuple[list[str], int, str]] = {
    "truth values": (["true", "False", "Yes"], 0, "right"),
    "sentences": (["5", "All primes except two"], 0, "answers in words, which only the same words equal: own-00002"),
    "GSM8K's solutions": (["We compute.\n#### 5"], 2, "own-00001"),
    "cases": ([r"\begin{cases}1&n\text{ odd}\\2&n\text{ even}\end{cases}"], 0, "right"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_own_answers(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golds, code, says = REPORTED[name]
    rows = [{"problem": f"problem {i}", "answer": gold} for i, gold in enumerate(golds)]
    write_lines(tmp_path / "own.jsonl", rows)
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert says in printed.out + printed.err


def test_repeated_problems_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"problem": f"problem {i % 3}", "answer": "5"} for i in range(96)]
    write_lines(tmp_path / "own.jsonl", rows)
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == 0
    assert "96 lines are 3 different problems" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["own.parquet", "own.json", "own.csv"])
def test_other_formats_are_named_with_what_is_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).touch()
    assert main(["data", "check", name, "--root", str(tmp_path)]) == 2
    assert "are read as JSON Lines (.jsonl)" in capsys.readouterr().err
