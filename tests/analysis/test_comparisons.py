"""Comparisons: each statistic from records whose answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis import measures
from policygrain.analysis.claim_text import comparison_text
from policygrain.analysis.comparisons import compare, lacking
from policygrain.analysis.ledger import Comparison
from policygrain.errors import UserError
from policygrain.study.runs import run_matrix

from .records import study_of, write, write_estimators, write_rounds


def comparison(**keys: Any) -> Comparison:
    return Comparison.model_validate({"claimed": "above", "margin_reason": "a reason"} | keys)


def heights(arm: str, seed: int) -> list[float]:
    """GRPO rises from 20% by 10 points a step; TEPO is a point better after the start, and seeds a tenth each."""
    better = 0.01 if arm == "tepo" else 0.0
    return [0.2, *(0.2 + 0.1 * s + better + 0.001 * seed for s in (1, 2, 3, 4))]


def test_the_area_under_a_curve_by_hand(tmp_path: Path) -> None:
    """Heights 20, 30, 40, 50, 60 over four steps: (20/2 + 30 + 40 + 50 + 60/2) / 4 = 40. TEPO: 3.5 points / 4 more."""
    results = write(study_of(2), tmp_path, heights)
    assert measures.area(results, "grpo").to_dict() == pytest.approx({0: 40.0, 1: 40.0 + 0.1 * 3.5 / 4})
    found = compare(results, comparison(statistic="curve", of="tepo", than="grpo"))
    assert found.mean == pytest.approx(3.5 / 4) and found.unit == "training seeds"
    assert (found.seeds, found.n) == ((0, 1), 2)


def test_at_equal_numbers_of_samples_a_sampler_that_draws_twice_sees_half_the_curve(tmp_path: Path) -> None:
    """DAPO samples 200 a step and GRPO 100: the area is up to 400 samples, which are DAPO's first two steps.

    Its mean height there is (20/2 + 30 + 40/2) / 2 = 30, and GRPO's over all four steps 40.
    """
    results = write(study_of(2), tmp_path, lambda arm, seed: [0.2, 0.3, 0.4, 0.5, 0.6], samples={"dapo": 200})
    found = compare(results, comparison(statistic="curve", by="samples", of="dapo", than="grpo"))
    assert found.mean == pytest.approx(30 - 40)
    assert compare(results, comparison(statistic="curve", of="dapo", than="grpo")).mean == pytest.approx(0)


def test_a_curve_ends_between_two_validations(tmp_path: Path) -> None:
    """300 samples of 100 against 120 per step: the other curve is cut after 300 of 360, at height 20 + 25 = 45."""
    curve = [0.2, 0.3, 0.4, 0.5]
    results = write(study_of(2), tmp_path, lambda arm, seed: curve, samples={"dapo": 120})
    a, b = measures.areas_by_samples(results, "dapo", "grpo")
    assert a[0] == pytest.approx((20 + 45) / 2) and b[0] == pytest.approx(35)


INSTRUMENTS: dict[str, Any] = {
    "estimators": {"methods": ["token", "tepo"], "reference": "token", "updates": [4, 16], "steps": [1, 2]},
    "rounds": {"methods": ["token", "tepo"], "reference": "token", "updates": [1, 2], "pools": 2},
    "methods": {"token": {"base": "grpo"}},
}


def test_an_estimator_is_compared_at_each_distance_then_averaged(tmp_path: Path) -> None:
    """Norm ratios of 2 at 4 updates and 8 at 16: log2 of 1 and 3, mean 2. Clip fractions are in points."""
    results = write(study_of(3, **INSTRUMENTS), tmp_path, heights)
    write_estimators(
        results,
        lambda name, start, updates: (
            {"norm": {4: 2.0, 16: 8.0}[updates] * (1 + start), "clip_fraction": 0.03 + 0.01 * start}
            if name == "tepo"
            else {"norm": 1.0 + start, "clip_fraction": 0.01}
        ),
    )
    norm = {"statistic": "estimator", "metric": "norm", "log": True, "of": "tepo", "than": "token", "margin": 0.1}
    found = compare(results, comparison(**norm))
    assert found.values == pytest.approx((2.0, 2.0, 2.0)) and (found.n, found.unit) == (3, "start models")
    assert compare(results, comparison(**norm, updates=4)).mean == pytest.approx(1)
    clip = comparison(statistic="estimator", metric="clip_fraction", of="tepo", than="token", margin="1 points")
    assert compare(results, clip).values == pytest.approx((2.0, 3.0, 4.0))
    with pytest.raises(UserError, match="no estimator 'tepo' after 8 updates was measured"):
        compare(results, comparison(**norm, updates=8))
    with pytest.raises(UserError, match="no estimator 'mpo'"):
        compare(results, comparison(**norm | {"of": "mpo"}))


def test_what_is_not_positive_has_no_logarithm(tmp_path: Path) -> None:
    results = write(study_of(2, **INSTRUMENTS), tmp_path, heights)
    write_estimators(results, lambda name, start, updates: {"snr": -0.1 if name == "tepo" else 1.0})
    snr = comparison(statistic="estimator", metric="snr", log=True, of="tepo", than="token", margin=0.1)
    with pytest.raises(UserError, match=r"snr of 'tepo' is -0.1 .* no logarithm"):
        compare(results, snr)


def test_a_round_is_its_last_reward_over_pools(tmp_path: Path) -> None:
    """TEPO gains a point per update in pool 0 and three in pool 1, GRPO's loss none: 2 · 2 points at the end."""
    results = write(study_of(3, **INSTRUMENTS), tmp_path, heights)
    write_rounds(results, lambda name, start, pool, updates: 0.3 + (name == "tepo") * updates * (0.01 + 0.02 * pool))
    found = compare(results, comparison(statistic="round", of="tepo", than="token"))
    assert found.values == pytest.approx((4.0, 4.0, 4.0)) and found.unit == "start models"
    assert compare(results, comparison(statistic="round", of="tepo", than="token", updates=1)).mean == pytest.approx(2)


def test_effects_of_opposite_sign_at_two_stages_have_no_mean(tmp_path: Path) -> None:
    rounds = {"methods": ["grpo", "tepo"], "reference": "grpo", "steps": [1, 2]}
    study = study_of(2, rounds=rounds)
    c = comparison(statistic="round", of="tepo", than="grpo")
    with pytest.raises(UserError, match=r"needs one stage in `rounds\.steps`, not 2"):
        compare(write(study, tmp_path, heights), c)
    missing = lacking(study, run_matrix(study), c)
    assert missing is not None and missing.startswith("one stage"), "`policygrain check` says so before anything is run"


def test_start_models_that_are_not_measured_yet_are_waited_for(tmp_path: Path) -> None:
    """They are tested once, by their planned number."""
    results = write(study_of(3, **INSTRUMENTS), tmp_path, heights)
    write_rounds(results, lambda *_: 0.3)
    results.folder.rounds(1).unlink()
    with pytest.raises(UserError, match="not measured on start model 1: run"):
        compare(results, comparison(statistic="round", of="tepo", than="token"))


def test_the_seeds_that_both_arms_have_are_compared(tmp_path: Path) -> None:
    """Of seeds 0, 1, 2 and 3 with 1 missing, three."""
    results = write(study_of(4), tmp_path, heights)
    for path in results.folder.run("grpo", 1).path.rglob("*.json*"):
        path.unlink()
    for statistic in ("curve", "accuracy"):
        assert compare(results, comparison(statistic=statistic, of="tepo", than="grpo")).seeds == (0, 2, 3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"statistic": "probe"}, "'accuracy', 'curve'"),
        (
            {"statistic": "estimator", "metric": "beauty", "margin": 1},
            "have no 'beauty'; there are bias_cosine",
        ),
        ({"statistic": "accuracy", "by": "samples"}, "only `curve` has"),
        ({"statistic": "curve", "updates": 4}, "only `estimator` and `round` have"),
        ({"statistic": "curve", "log": True, "margin": 1}, "only `metric` and `estimator` have"),
        ({"statistic": "round", "margin": "0.01 points"}, "in points, not shares"),
        ({"statistic": "curve", "margin": 0}, "larger than 0"),
        ({"statistic": "estimator", "metric": "norm", "log": True, "margin": "2 points"}, "the unit 'log2 ratio'"),
        ({"statistic": "estimator", "metric": "clip_fraction", "margin": "1 log2 ratio"}, "the unit 'points'"),
    ],
)
def test_keys_of_another_statistic_are_errors(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        comparison(of="tepo", than="grpo", **keys)


def test_margins_by_default() -> None:
    assert comparison(statistic="curve", of="a", than="b").margin == 2
    assert comparison(statistic="round", of="a", than="b").margin == 1


def test_a_comparison_names_its_instrument() -> None:
    said = [
        comparison_text(comparison(statistic="curve", by="samples", of="tepo", than="grpo")),
        comparison_text(comparison(statistic="accuracy", of="tepo", than="grpo", claimed="apart"), str.upper),
        comparison_text(comparison(statistic="round", of="tepo", than="grpo", updates=4)),
        comparison_text(
            comparison(statistic="estimator", metric="ratio_variance", of="a", than="b", claimed="below", margin=1)
        ),
    ]
    assert said == [
        "full runs, area under the learning curve by samples: tepo above grpo",
        "full runs, accuracy: TEPO apart from GRPO",
        "one round, reward after 4 updates: tepo above grpo",
        "estimators, ratio variance: a below b",
    ]
