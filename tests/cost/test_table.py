"""What `policygrain plan` prints, and the page that shows it."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.cost.constants import read_constants
from policygrain.cost.shapes import shape_of
from policygrain.cost.workload import Planner
from policygrain.study import load_study
from policygrain.study.runs import run_matrix


def test_the_page_shows_what_the_commands_print(in_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change, paste the output of the commands into the page."""
    page = Path("docs/studies.md").read_text()
    (command,) = re.findall(r"`policygrain (plan .*?--markdown)`", page, flags=re.S)
    assert main(command.split()) == 0
    assert capsys.readouterr().out in page
    recorded = json.loads(Path("benchmarks/plan_laptop.json").read_text())
    for row in recorded:
        if row["phase"] == "all":
            assert f"| {row['rule']} | {row['predicted']:,.0f} | {row['measured']:,.0f} | {row['ratio']:.2f} |" in page
            assert 0.5 <= row["ratio"] <= 2  # the factor of two that the page states
    # The constants still give the recorded prediction, of the planned runs and of those that were added.
    with zipfile.ZipFile("docs/records/laptop.zip") as records:
        runs = [name.split("/")[1] for name in records.namelist() if re.fullmatch(r"runs/[^/]+/seed\d+/run.json", name)]
    study, constants = load_study("config.yaml"), read_constants()
    planner, matrix = Planner(study, shape_of(study.model, {}), constants.workload("tiny")), run_matrix(study)
    for phase in ("decode_transformers", "score", "update"):
        speed = constants.device("cpu").speed(phase)
        arms = [matrix.arms[arm] for arm in runs]
        loads = [planner.step(arm).loads[phase] * arm.training(study).steps for arm in arms]
        (row,) = [r for r in recorded if (r["rule"], r["phase"]) == ("train", phase)]
        assert sum(map(speed.seconds, loads)) == pytest.approx(row["predicted"], rel=1e-6)


def test_a_plan_names_its_assumptions_and_what_does_not_fit(in_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "studies/tepo-qwen2.5-7b.yaml", "--per-run", "1"]) == 0
    shown = capsys.readouterr().out
    assert "(assumed, not measured)" in shown and shown.count("DOES NOT FIT") == 1
    assert main(["plan", "studies/tepo-qwen2.5-7b.yaml", "--json", "--gpus", "16"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["gpus"] == 16
    assert main(["plan", "config.yaml", "--device", "h1000"]) == 2
    assert "Did you mean 'h100'" in capsys.readouterr().err
    assert main(["plan", "config.yaml", "--against", "nowhere"]) == 2
    assert "no finished run" in capsys.readouterr().err
