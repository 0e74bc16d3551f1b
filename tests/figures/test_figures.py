"""Figures and tables from made-up records, whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from policygrain.analysis.ledger import load_claims
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.figures.catalogue import draw, figure
from policygrain.results.layout import StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.study import Study, load_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(in_root: Path) -> Study:
    return load_study("studies/smoke.yaml")


@pytest.fixture
def results(study: Study, tmp_path: Path) -> Path:
    """Records of the smoke study: GRPO right on half of the problems, TEPO on three quarters, the start on none."""
    return make_up(study, tmp_path, {"start": 0, "grpo": 6, "tepo": 9})


def test_curves_of_a_study_without_any_optimizer_step_are_empty(results: Path, tmp_path: Path) -> None:
    """Every group had equal rewards: no metric of an update was logged."""
    for path in results.glob("runs/*/seed*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{k: v for k, v in row.items() if k not in ("gradient_norm", "entropy_old")} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    draw("dynamics", StudyResults(results), tmp_path / "dynamics")
    assert (tmp_path / "dynamics.png").exists()


def test_the_table_holds_the_numbers(results: Path) -> None:
    found = StudyResults(results)
    draw("results", found)
    text = (results / "tables" / "results.md").read_text()
    assert "| GRPO | 50.0 [" in text and "| initial model | 0.0 [0.0, 13.8] |" in text
    # 0 of 24 answers of two seeds: Wilson's upper limit is z² / (24 + z²) = 3.84 / 27.84 = 13.8%.
    assert "| GRPO − TEPO | -25.0 [" in text and "| TEPO − initial model | +75.0 [" in text
    assert found.scores("tepo", "count").shape == (2, 12)


def test_the_claims_table_has_a_row_for_every_claim(results: Path, tmp_path: Path) -> None:
    draw("claims", StudyResults(results), tmp_path / "claims")
    frame = pd.read_csv(tmp_path / "claims.csv")
    claims = load_claims()
    assert list(dict.fromkeys(frame["claim"])) == list(claims)
    assert f"Of {len(claims)} claims: " in (tmp_path / "claims.md").read_text()


def test_missing_records_say_what_would_make_them(study: Study, results: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run has been trained yet\. Run `snakemake all`"):
        draw("dynamics", StudyResults(tmp_path / "empty", study), tmp_path / "x")
    with pytest.raises(UserError, match=r"nothing has been evaluated yet\. Run `snakemake all`"):
        draw("benchmarks", StudyResults(tmp_path / "empty", study), tmp_path / "x")
    with pytest.raises(UserError, match=r"no estimators have been measured\. Run `snakemake all`"):
        draw("ratio_variance", StudyResults(tmp_path / "empty", study), tmp_path / "x")
    for seed in (0, 1):
        StudyFolder(results).evaluation(f"tepo/seed{seed}").record.unlink()
    with pytest.raises(UserError, match="no evaluation of 'tepo'"):
        draw("benchmarks", StudyResults(results), tmp_path / "x")


def test_an_unknown_figure_is_one_message(in_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", "studies/smoke.yaml", "--results", str(tmp_path), "--out", str(tmp_path / "x")]
    assert main(["figure", "benchmark", *arguments]) == 2
    assert "Did you mean 'benchmarks'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tepo-qwen2.5-7b", "tepo-qwen2.5-math-1.5b", "mpo-r1-distill-1.5b"])
def test_a_paper_s_study_supplies_every_figure_that_it_asks_for(name: str, tmp_path: Path, in_root: Path) -> None:
    """Known before its runs take days, not after."""
    study = load_study(in_root / "studies" / f"{name}.yaml")
    records = StudyResults(make_up(study, tmp_path / name, {"start": 0, "tepo": 9}))
    for asked in study.figures:
        assert figure(asked, records).axes, asked
