"""The record of all cases, the command, and the committed record."""

import json

import pytest

from policygrain.cases import measure, policies
from policygrain.cases.definitions import CASES, estimators
from policygrain.cases.record import text
from policygrain.cli import main
from policygrain.results.measurements import CasesRecord
from policygrain.results.schema import read_record

from ..conftest import ROOT


@pytest.fixture
def short(monkeypatch):
    """Training of a few updates."""
    monkeypatch.setattr(measure, "UPDATES", 4)


@pytest.mark.slow
def test_the_command_writes_its_record_and_figure_and_prints_it(short, tmp_path, capsys):
    assert main(["cases", "--seeds", "3", "--json", "--out", str(tmp_path / "new")]) == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"cases.json", "cases.pdf", "cases.svg", "cases.png"}
    record = read_record(CasesRecord, tmp_path / "new" / "cases.json", "Run it again.")
    assert json.loads(capsys.readouterr().out) == record.model_dump(mode="json")
    assert record.seeds == 3 and [case.name for case in record.cases] == [case.name for case in CASES]
    for case in record.cases:
        assert [(e.name, e.clip is not None) for e in case.estimators] == [(e.name, e.is_clipped) for e in estimators()]
        for estimator in case.estimators:
            assert len(estimator.doses) == (0 if estimator.clip else len(case.doses))
        assert case.of("token").difference == case.of("token", clipped=True).difference == (0, 0, 0)
        assert f"{case.title}. {case.prediction}" in text(record)
    assert text(record).count("joint block, K=2 ") == 2 * len(CASES)


def test_one_seed_has_no_interval(capsys):
    assert main(["cases", "--seeds", "1"]) == 2
    assert "--seeds 1: an interval over seeds needs at least 2" in capsys.readouterr().err


def test_the_committed_record_is_of_these_cases():
    """After a change of the cases: `policygrain cases --out FOLDER`, and copy cases.json and cases.png to docs/."""
    record = read_record(CasesRecord, ROOT / "docs" / "cases.json", "Run `policygrain cases`.")
    for case, found in zip(CASES, record.cases, strict=True):
        assert (found.title, found.prediction, found.order) == (case.title, case.prediction, case.order)
        assert found.doses == list(case.doses)
        assert found.settings.items() <= vars(case).items()
        for estimator in estimators():
            recorded = found.of(estimator.name, estimator.is_clipped)
            assert recorded.ratio == estimator.ratio.data()
            update = measure.expected_update(estimator.method, case)
            assert recorded.push == pytest.approx(update[policies.X1].item(), rel=1e-4, abs=2e-6)
