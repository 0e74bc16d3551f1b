"""Several processes that sample at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.evaluate.evaluation import evaluate
from policygrain.evaluate.parallel import sample_in_parallel
from policygrain.files import read_json_lines
from policygrain.results.layout import DataFolder, StudyFolder

from ..support.small import SMALL, make_start, small_study


@pytest.mark.slow
def test_several_engines_sample_what_one_samples(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two processes of the second of two parts, then the rest here: the same rollouts as in one go."""
    data, start = make_start(tmp_path)
    whole, results = StudyFolder(tmp_path / "whole"), StudyFolder(tmp_path / "out")
    evaluate(small_study(), {"start/seed0": start}, DataFolder(data), whole)
    config = tmp_path / "study.yaml"
    config.write_text(yaml.safe_dump(SMALL))
    command = ["evaluate", "--config", str(config), "--data", str(data), "--results", str(results.path)]
    command += [f"start/seed0={start}"]
    assert main([*command, "--part", "1/2", "--engines", "2"]) == 0
    store = results.evaluation("start/seed0")
    found = store.all_responses()
    assert [(p.name.split("-")[-1], len(read_json_lines(p))) for p in found] == [("1of4.jsonl", 8), ("3of4.jsonl", 7)]
    assert "engine 2 of 2: load" in capfd.readouterr().err
    assert main(command) == 0
    assert store.samples("count").read_bytes() == whole.evaluation("start/seed0").samples("count").read_bytes()


def test_engines_that_fail_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"of 2 engines, 1 \(exit code 2\), 2 \(exit code 2\) failed"):
        sample_in_parallel(["methods"], (0, 1), 2)
    assert "engine 1 of 2: policygrain: error: unrecognized arguments: --part 0/2" in capfd.readouterr().err
