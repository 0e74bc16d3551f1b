"""Measures: each from records whose answer is known."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from policygrain.analysis import measures
from policygrain.analysis.statistics import student
from policygrain.figures.catalogue import figure
from policygrain.paths import START

from .records import effects, study_of, write


def heights(arm: str, seed: int) -> list[float]:
    """GRPO rises from 20% by 10 points a step; TEPO is a point better after the start, and seeds a tenth each."""
    better = 0.01 if arm == "tepo" else 0.0
    return [0.2, *(0.2 + 0.1 * s + better + 0.001 * seed for s in (1, 2, 3, 4))]


def test_the_area_under_a_curve_by_hand(tmp_path: Path) -> None:
    """Heights 20, 30, 40, 50, 60 over four steps: (20/2 + 30 + 40 + 50 + 60/2) / 4 = 40. TEPO: 3.5 points / 4 more."""
    results = write(study_of(2), tmp_path, heights)
    assert measures.auc(results, "grpo").to_dict() == pytest.approx({0: 40.0, 1: 40.0 + 0.1 * 3.5 / 4})
    assert measures.auc(results, "tepo")[0] == pytest.approx(40 + 3.5 / 4)


def flat(arm: str, seed: int) -> list[float]:
    """GRPO reaches its 40% with the fourth step; TEPO with its second, or never with seed 2."""
    if arm == "tepo":
        return [0.2] * 9 if seed == 2 else [0.2, 0.3, *[0.4] * 7]
    return [0.2, 0.25, 0.3, 0.35, *[0.4] * 5]


def test_a_run_that_never_arrives_takes_longer_than_any(tmp_path: Path) -> None:
    results = write(study_of(3), tmp_path, flat)
    for by in ("steps", "tokens"):
        assert measures.reached(results, "tepo", "grpo", by).tolist() == pytest.approx([-1.0, -1.0, math.inf])
    assert measures.reached(results, "grpo", "grpo", "tokens").tolist() == [0, 0, 0]


def test_the_seeds_that_both_arms_have_are_compared(tmp_path: Path) -> None:
    """Of seeds 0, 1, 2 and 3 with 1 missing, three."""
    results = write(study_of(4), tmp_path, heights)
    for path in results.folder.run("grpo", 1).path.rglob("*.json*"):
        path.unlink()
    assert measures.over_units(results, measures.auc(results, "tepo") - measures.auc(results, "grpo")).n == 3
    assert measures.accuracy_difference(results, "tepo", "grpo").n == 3
    assert measures.length_difference(results, "tepo", "grpo").n == 3


def test_seeds_that_share_an_initial_model_count_once(tmp_path: Path) -> None:
    """Four seeds on two initial models: the mean of each model's two seeds is one value."""
    results = write(study_of(4, model={"starts": 2}), tmp_path, effects(tepo=2.0))
    one, two = (measures.auc(results, arm) for arm in ("tepo", "grpo"))
    each = (one - two).to_numpy()
    expected = student([(each[0] + each[2]) / 2, (each[1] + each[3]) / 2])
    found = measures.over_units(results, one - two)
    assert (found.n, found.unit) == (2, "initial models")
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert measures.length_difference(results, "tepo", "grpo").unit == "initial models"
    gain = measures.accuracy_difference(results, "tepo", START)
    assert (gain.n, gain.unit) == (2, "initial models"), "of four final models over two initial ones"
    assert (measures.accuracy_difference(results, "tepo", "grpo").n, len(results.scores("tepo", "count"))) == (2, 2)


def test_seeds_of_an_experiment_share_initial_models_too(tmp_path: Path) -> None:
    """The study's two seeds have their own; those of the experiment take turns. Marks of a figure are units."""
    methods = {"headline": {"methods": ["grpo", "tepo"], "seeds": [0, 1, 2, 3]}}
    results = write(study_of(2, model={"starts": 2}, experiments=methods), tmp_path, effects(tepo=2.0))
    assert measures.over_units(results, measures.auc(results, "tepo")).unit == "initial models"
    panel, *_ = figure("convergence", results).axes
    assert max(len(line.get_xdata()) for line in panel.lines if line.get_linestyle() == "None") == 2


def test_no_optimizer_step_before_the_level_counts_as_one(tmp_path: Path) -> None:
    """Every group of GRPO had equal rewards."""
    results = write(study_of(2), tmp_path, lambda arm, seed: [0.3] * 6)
    for path in tmp_path.glob("runs/grpo/*/metrics.jsonl"):
        path.write_text(re.sub(r'"total_updates": \d+', '"total_updates": 0', path.read_text()))
    assert measures.reached(results, "tepo", "grpo", "steps").tolist() == [1.0, 1.0], "two steps to one"
    assert measures.reached(results, "grpo", "tepo", "steps").tolist() == [-1.0, -1.0]
