"""Checking files against the registry: counts, content, columns, ids."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.data import registry, set_files

from ..support.problem_sets import RECORDED, made_up


def test_check_names_each_fault(tmp_path: Path) -> None:
    dataset = made_up(count=2, content=set_files.content_digest([("1+1", "2"), ("2+2", "4")]))
    path = tmp_path / "made_up.jsonl"

    def faults(*rows: dict[str, object]) -> str:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return "; ".join(set_files.check(dataset, tmp_path))

    one, two = {"id": 1, "problem": "1+1", "answer": "2"}, {"id": 2, "problem": "2+2", "answer": "4"}
    assert faults(one, two) == ""
    # White space and ids are not part of the digest; order, problems and answers are.
    assert faults({**one, "id": "x"}, {**two, "problem": " 2+2\n"}) == ""
    assert "wrong content" in faults(two, one)
    assert "wrong content" in faults(one, {**two, "answer": "5"})
    assert "1 problems instead of 2" in faults(one)
    assert "1 ids occur more than once" in faults(one, {**two, "id": 1})
    assert "line 2: no 'answer'" in faults(one, {**two, "answer": ""})
    assert "line 1: no 'problem'" in faults({"question": "1+1", "answer": "2"})


def test_check_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "--root", str(tmp_path)]) == 2
    assert "none of the registered sets is here" in capsys.readouterr().err
    (tmp_path / "aime24.jsonl").write_text('{"id": 1, "problem": "1+1", "answer": "2"}\n')
    assert main(["data", "check", "--root", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert re.search(r"aime24 +WRONG", shown.out)
    assert shown.err.count("policygrain:") == 1 and "1 problems instead of 30" in shown.err
    assert main(["data", "check", "aime25", "--root", str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["data", "check", "aime26", "--root", str(tmp_path)]) == 2
    assert "'aime26' is no registered problem set. Did you mean 'aime2" in capsys.readouterr().err


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_files_pass(name: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    assert set_files.check(dataset, benchmarks_folder) == []
