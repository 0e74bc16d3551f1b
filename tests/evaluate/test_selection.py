"""Problems selected by how often a model solves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.cli import main
from policygrain.data.problem import Problem, read_problems
from policygrain.errors import UserError
from policygrain.evaluate.scores import write_samples
from policygrain.evaluate.selection import select, solve_rates
from policygrain.records import EvaluatedSample


def sample(problem: str, number: int, correct: bool, greedy: bool = False) -> EvaluatedSample:
    outcome = "correct" if correct else "incorrect"
    return EvaluatedSample("own", problem, number, greedy, f"problem {problem}", "1", "1", "1", outcome, 1, False)


def problem(name: str) -> Problem:
    return Problem(name, f"problem {name}", "1", "own")


@given(st.dictionaries(st.text("abc", min_size=1), st.lists(st.booleans(), min_size=1, max_size=5), min_size=1))
def test_problems_with_both_kinds_of_responses_are_selected_in_their_order(outcomes: dict[str, list[bool]]) -> None:
    problems = [problem(name) for name in outcomes]
    rows = [sample(name, i, right) for name, found in outcomes.items() for i, right in enumerate(found)]
    greedy = [sample(name, 0, True, greedy=True) for name in outcomes]  # which do not count
    rates = solve_rates(pd.DataFrame(rows + greedy, columns=list(EvaluatedSample._fields)))
    assert {name: rate for (name, _), rate in rates.items()} == {
        name: sum(found) / len(found) for name, found in outcomes.items()
    }
    mixed = [name for name, found in outcomes.items() if {*found} == {True, False}]
    if not mixed:
        with pytest.raises(UserError, match="none of"):
            select(problems, rates)
        return
    assert [p.id for p in select(problems, rates)] == mixed
    assert select(problems, rates, 0.0, 1.0) == problems
    least = max(rates.values())
    assert {rates[p.id, p.problem] for p in select(problems, rates, least, 1.0)} == {least}
    with pytest.raises(UserError, match="have no responses"):  # to other problems with the same ids
        select([replace(p, problem="another") for p in problems], rates)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_command_keeps_all_keys_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLICYGRAIN_DATA", raising=False)
    own: list[dict[str, Any]] = [
        {"id": "never", "problem": "problem never", "answer": "1"},
        {"id": "sometimes", "problem": "problem sometimes", "answer": "[1, 2]", "list_answer": True},
        {"id": "always", "problem": "problem always", "answer": "1"},
    ]
    write(tmp_path / "own.jsonl", own)
    right = {"never": [0, 0], "sometimes": [0, 1], "always": [1, 1]}
    rows = [sample(name, i, bool(x)) for name, found in right.items() for i, x in enumerate(found)]
    samples, few = str(tmp_path / "samples.parquet"), str(tmp_path / "few.parquet")
    write_samples(Path(samples), rows)
    assert main(["data", "select", "own.jsonl", samples, "--out", "selected.jsonl"]) == 0
    assert "selected.jsonl: 1 of 3 problems, with a mean solve rate of 50.0%" in capsys.readouterr().out
    assert read_problems(tmp_path / "selected.jsonl") == [read_problems(tmp_path / "own.jsonl")[1]]

    write_samples(Path(few), rows[:2])
    assert main(["data", "select", "own.jsonl", few, "--out", "x.jsonl"]) == 2
    assert "2 of 3 problems have no responses (the first: sometimes)" in capsys.readouterr().err
    assert main(["data", "select", "own.jsonl", samples, "--least", "0.6", "--most", "0.9", "--out", "x.jsonl"]) == 2
    assert "none of 3 problems is in these bounds; 50.0% of responses are correct" in capsys.readouterr().err
    assert main(["data", "select", "own.jsonl", "own.jsonl", "--out", "x.jsonl"]) == 2
    assert (
        "own.jsonl: cannot be read as evaluated samples" in capsys.readouterr().err
        and not (tmp_path / "x.jsonl").exists()
    )
