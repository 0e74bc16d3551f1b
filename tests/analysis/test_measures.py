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

from ..support.made_up import make_up_evaluation
from .records import effects, study_of, write


def heights(arm: str, seed: int) -> list[float]:
    """GRPO rises from 20% by 10 points a step; TEPO is a point better after the start, and seeds a tenth each."""
    better = 0.01 if arm == "tepo" else 0.0
    return [0.2, *(0.2 + 0.1 * s + better + 0.001 * seed for s in (1, 2, 3, 4))]


def test_the_area_under_a_curve_of_the_seeds_that_both_arms_have(tmp_path: Path) -> None:
    """Heights 20, 30, 40, 50, 60 over four steps: (20/2 + 30 + 40 + 50 + 60/2) / 4 = 40. TEPO: 3.5 points / 4 more."""
    results = write(study_of(4), tmp_path, heights)
    for path in results.folder.run("grpo", 1).path.rglob("*.json*"):
        path.unlink()
    one, two = (measures.auc(results, arm) for arm in ("grpo", "tepo"))
    assert one.to_dict() == pytest.approx({s: 40 + 0.1 * s * 3.5 / 4 for s in (0, 2, 3)})
    assert two[0] == pytest.approx(40 + 3.5 / 4)
    assert measures.over_units(results, two - one).n == 3
    assert measures.accuracy_difference(results, "tepo", "grpo").n == 3
    assert measures.length_difference(results, "tepo", "grpo").n == 3


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


def test_no_optimizer_step_before_the_level_counts_as_one(tmp_path: Path) -> None:
    """Every group of GRPO had equal rewards."""
    results = write(study_of(2), tmp_path, lambda arm, seed: [0.3] * 6)
    for path in tmp_path.glob("runs/grpo/*/metrics.jsonl"):
        path.write_text(re.sub(r'"total_updates": \d+', '"total_updates": 0', path.read_text()))
    assert measures.reached(results, "tepo", "grpo", "steps").tolist() == [1.0, 1.0], "two steps to one"
    assert measures.reached(results, "grpo", "tepo", "steps").tolist() == [-1.0, -1.0]


def test_seeds_that_share_an_initial_model_count_once(tmp_path: Path) -> None:
    """Four seeds on two initial models: the mean of each model's two seeds is one value, also in marks of a figure."""
    headline = {"headline": {"methods": ["grpo", "tepo"], "seeds": [0, 1, 2, 3]}}
    results = write(study_of(2, model={"starts": 2}, experiments=headline), tmp_path, effects(tepo=2.0))
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
    panel, *_ = figure("convergence", results).axes
    assert max(len(line.get_xdata()) for line in panel.lines if line.get_linestyle() == "None") == 2


def test_an_only_initial_model_is_compared_with_every_seed(tmp_path: Path) -> None:
    """Of 12 problems it solves 3, and the seeds 4, 6 and 8: 25 points on average, over three seeds."""
    study = study_of(3, experiments={"headline": {"methods": ["grpo", "tepo"]}}, model={"starts": 1})
    results = write(study, tmp_path, effects())
    for model, right in {"start/seed0": 3, "grpo/seed0": 4, "grpo/seed1": 6, "grpo/seed2": 8}.items():
        make_up_evaluation(study, results.folder, model, right)
    d = measures.accuracy_difference(results, "grpo", START)
    assert d.mean == pytest.approx(25) and (d.n, d.unit) == (3, "training seeds")
