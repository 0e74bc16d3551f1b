"""What a verdict costs: the spread of paired differences, and the seeds that it asks for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from policygrain.analysis import power
from policygrain.analysis.power import paired_spreads, seeds_to_decide
from policygrain.analysis.statistics import student
from policygrain.analysis.verdicts import margin_tests
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.results.reader import StudyResults
from policygrain.study import load_study

from ..support.made_up import make_up

ROOT = Path(__file__).parents[2]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Differences of grpo and tepo of 1 and 5 points, on two seeds."""
    values = {"grpo": pd.Series({0: 10.0, 1: 14.0}), "tepo": pd.Series({0: 9.0, 1: 9.0})}
    monkeypatch.setattr(power, "ENDPOINTS", {"accuracy": lambda _, arm: values[arm]})
    return make_up(load_study(ROOT / "studies" / "smoke.yaml"), tmp_path / "smoke", {})


def test_the_spread_is_the_standard_deviation_of_paired_differences(records: Path) -> None:
    (found,) = paired_spreads(StudyResults(records))
    assert found.sd == pytest.approx(4 / math.sqrt(2)) and (found.pairs, found.degrees) == (1, 1)
    # The interval of a standard deviation with one degree of freedom: quantiles of chi-squared are 0.00098 and 5.02.
    assert found.low == pytest.approx(found.sd / math.sqrt(5.024), rel=1e-3)
    assert found.high == pytest.approx(found.sd / math.sqrt(0.000982), rel=1e-3)


@pytest.mark.parametrize("comparisons", [1, 27])
def test_more_spread_and_smaller_margins_ask_for_more_seeds(comparisons: int) -> None:
    needed = [seeds_to_decide(sd, 2.0, comparisons) or 1001 for sd in (0.5, 1, 2, 4, 8)]
    assert needed == sorted(needed) and needed[0] < needed[-1]
    # Only their ratio counts.
    assert seeds_to_decide(3.0, 2.0, comparisons) == seeds_to_decide(6.0, 4.0, comparisons)
    assert seeds_to_decide(2.0, 2.0, 27) >= seeds_to_decide(2.0, 2.0, 1)  # type: ignore[operator]
    assert seeds_to_decide(1000.0, 1.0, comparisons) is None


@pytest.mark.parametrize(("sd", "comparisons"), [(1.0, 1), (4.0, 27)])
def test_with_the_planned_seeds_four_of_five_studies_support_twice_the_margin(sd: float, comparisons: int) -> None:
    n = seeds_to_decide(sd, 2.0, comparisons)
    assert n is not None
    rng, level = np.random.default_rng(5), 0.05 / comparisons

    def supported(seeds: int) -> float:
        found = (student(rng.normal(4.0, sd, seeds)) for _ in range(2000))
        return sum(margin_tests(d, "above", 2.0).supports < level for d in found) / 2000

    assert supported(n) > 0.8 - 3 * 0.4 / math.sqrt(2000) and supported(n - 1) < 0.8 + 3 * 0.4 / math.sqrt(2000)


def test_the_table_names_records_study_and_hours(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "studies" / "smoke.yaml"), "--power", str(records)]) == 0
    text = capsys.readouterr().out
    assert "margin 2 points" in text and "the study smoke" in text and "device-hours a run" in text


def test_records_of_one_seed_have_no_spread(tmp_path: Path) -> None:
    study = load_study(ROOT / "studies" / "smoke.yaml").model_copy(update={"seeds": [0], "controls": None})
    with pytest.raises(UserError, match="share two seeds"):
        paired_spreads(StudyResults(make_up(study, tmp_path / "smoke", {}), study))
