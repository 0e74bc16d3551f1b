"""Figures and tables from made-up records, whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures import FIGURES
from policygrain.figures.catalogue import draw
from policygrain.figures.records import Records
from policygrain.study import Study, load_study
from policygrain.study.arms import plan


@pytest.fixture
def study(in_root: Path) -> Study:
    return load_study("studies/smoke.yaml")


@pytest.fixture
def results(study: Study, tmp_path: Path) -> Path:
    """Records of the smoke study: GRPO right on half of the problems, TEPO on three quarters, the start on none."""
    planned = plan(study)
    for run in planned.runs:
        folder = tmp_path / run.folder
        folder.mkdir(parents=True)
        updates = planned.arms[run.arm].training(study).updates_per_batch
        shared = {"gradient_norm": 1.0, "entropy_old": 0.5, "response_length_mean": 9.0}
        rows = [
            {"step": s, "sampled_accuracy": 0.1 * s, "clip_fraction_low": 0.01, "clip_fraction_high": 0.02, **shared}
            | {"total_updates": updates * (s + 1)}
            for s in range(3)
        ]
        rows += [{"step": 3, "validation_accuracy": 0.5 + 0.1 * run.seed}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "evaluation").mkdir()
    lines = []
    for arm, right in {"start": 0, "grpo": 6, "tepo": 9}.items():
        for seed in (0, 1):
            for benchmark in ("running_total", "count"):
                per_problem = [1.0] * right + [0.0] * (12 - right)
                record = {"model": f"{arm}/seed{seed}", "benchmark": benchmark, "protocol_key": "k"}
                lines.append(json.dumps({**record, "per_problem": per_problem, "accuracy": right / 12}))
    (tmp_path / "evaluation" / "00.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_twice_the_same(name: str, study: Study, results: Path, tmp_path: Path) -> None:
    for attempt in ("a", "b"):
        draw(name, study, results, tmp_path / attempt / name)
    for suffix in (".png", ".pdf"):
        first = (tmp_path / "a" / f"{name}{suffix}").read_bytes()
        assert first == (tmp_path / "b" / f"{name}{suffix}").read_bytes()


def test_the_table_holds_the_numbers(study: Study, results: Path, tmp_path: Path) -> None:
    draw("results", study, results, tmp_path / "results")
    text = (tmp_path / "results.md").read_text()
    assert "| GRPO | 50.0 [" in text and "| start model | 0.0 [0.0, 0.0] |" in text
    # Better on the same problems in each resample that holds one of the three; 12 problems nearly always do.
    assert "| GRPO − TEPO | -25.0 [" in text and "| TEPO − start model | +75.0 [" in text
    records = Records(study, results)
    assert records.scores("tepo", "count").shape == (2, 12)
    assert np.allclose(records.final_validation("grpo"), [0.5, 0.6])


def test_records_of_two_protocols_refuse_one_table(study: Study, results: Path, tmp_path: Path) -> None:
    path = results / "evaluation" / "00.jsonl"
    path.write_text(path.read_text().replace('"k"', '"other"', 1))
    with pytest.raises(UserError, match="different protocols"):
        draw("results", study, results, tmp_path / "results")


def test_missing_records_say_what_would_make_them(study: Study, results: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `snakemake all` first"):
        draw("dynamics", study, tmp_path / "empty", tmp_path / "x")
    path = results / "evaluation" / "00.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "tepo" not in line))
    with pytest.raises(UserError, match="no record of 'tepo'"):
        draw("benchmarks", study, results, tmp_path / "x")
    path.write_text('{"model": \n')
    with pytest.raises(UserError, match=r"00\.jsonl, line 1: not JSON"):
        draw("benchmarks", study, results, tmp_path / "x")


def test_an_unknown_figure_is_one_message(in_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", "studies/smoke.yaml", "--results", str(tmp_path), "--out", str(tmp_path / "x")]
    assert main(["figure", "benchmark", *arguments]) == 2
    assert "Did you mean 'benchmarks'" in capsys.readouterr().err
