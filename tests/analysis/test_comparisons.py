"""Comparisons: each statistic from records whose answer is known."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from policygrain.analysis import measures
from policygrain.analysis.claims import Claim, Comparison, NotFlat, compare, decide_claims, lacking
from policygrain.analysis.statistics import student
from policygrain.analysis.wording import claims_text
from policygrain.errors import UserError
from policygrain.figures import rows
from policygrain.figures.catalogue import figure
from policygrain.paths import START
from policygrain.results import StudyResults
from policygrain.study.runs import run_matrix

from .records import effects, study_of, write, write_estimators, write_rounds


def comparison(**keys: Any) -> Comparison:
    return Comparison.model_validate({"claimed": "above"} | keys)


def heights(arm: str, seed: int) -> list[float]:
    """GRPO rises from 20% by 10 points a step; TEPO is a point better after the start, and seeds a tenth each."""
    better = 0.01 if arm == "tepo" else 0.0
    return [0.2, *(0.2 + 0.1 * s + better + 0.001 * seed for s in (1, 2, 3, 4))]


def test_the_area_under_a_curve_by_hand(tmp_path: Path) -> None:
    """Heights 20, 30, 40, 50, 60 over four steps: (20/2 + 30 + 40 + 50 + 60/2) / 4 = 40. TEPO: 3.5 points / 4 more."""
    results = write(study_of(2), tmp_path, heights)
    assert measures.area(results, "grpo").to_dict() == pytest.approx({0: 40.0, 1: 40.0 + 0.1 * 3.5 / 4})
    assert measures.area(results, "tepo")[0] == pytest.approx(40 + 3.5 / 4)


def test_a_fall_is_measured_from_the_best_before_it(tmp_path: Path) -> None:
    """Heights 20, 50, 40, 60, 35: the largest fall is 25 points, and a curve that only rises has none."""
    shaken = [0.2, 0.5, 0.4, 0.6, 0.35]
    results = write(study_of(2), tmp_path, lambda arm, seed: shaken if arm == "grpo" else heights(arm, seed))
    assert measures.largest_drop(results, "grpo").to_dict() == pytest.approx({0: 25.0, 1: 25.0})
    found = compare(results, comparison(statistic="drop", of="tepo", than="grpo", claimed="below"))
    assert found.mean == pytest.approx(-25)


def test_benchmarks_won_are_counted(tmp_path: Path) -> None:
    """TEPO solves a problem more of every benchmark, seeds alike."""
    results = write(study_of(3), tmp_path, heights, {"tepo": 7})
    won = len(results.benchmarks)
    found = compare(results, comparison(statistic="benchmarks", of="tepo", than="grpo"))
    assert found.values == (won, won, won)
    assert compare(results, comparison(statistic="benchmarks", of="dapo", than="grpo")).values == (0, 0, 0)


def flat(arm: str, seed: int) -> list[float]:
    """GRPO reaches its 40% with the fourth step; TEPO with its second, or never with seed 2."""
    if arm == "tepo":
        return [0.2] * 9 if seed == 2 else [0.2, 0.3, *[0.4] * 7]
    return [0.2, 0.25, 0.3, 0.35, *[0.4] * 5]


def test_a_run_that_never_arrives_takes_longer_than_any(tmp_path: Path) -> None:
    results = write(study_of(3), tmp_path, flat)
    for statistic in ("steps", "tokens"):
        found = compare(results, comparison(statistic=statistic, of="tepo", than="grpo", claimed="below"))
        assert found.values == pytest.approx((-1.0, -1.0, math.inf)) and found.mean == -1
    assert measures.reached(results, "grpo", "grpo", "tokens").tolist() == [0, 0, 0]


def test_where_curves_still_rise_convergence_is_inconclusive(tmp_path: Path) -> None:
    """Heights of the reference rise to the end, on every seed; flat curves, and curves that fall, are no reason."""
    results = write(study_of(4), tmp_path / "rising", heights)
    asked = comparison(statistic="steps", of="tepo", than="grpo", claimed="below")
    with pytest.raises(NotFlat, match=r"have not flattened: .* 'grpo' rises by 10.0 points .* over 4 training seeds"):
        compare(results, asked)
    claim = Claim(source="s", text="Half the time.", comparisons=[asked])
    (result,) = decide_claims({"half": claim}, lambda c: compare(results, c))
    assert (result.verdict, result.findings) == ("inconclusive", []) and "have not flattened" in result.missing
    assert "half: inconclusive" in claims_text([result]) and "curves still rise" in {
        text.get_text() for text in rows.draw_claims([result], str).axes[0].texts
    }
    falling = write(study_of(4), tmp_path / "falling", lambda arm, seed: [*flat(arm, 0)[:-1], 0.3 + seed / 100])
    assert compare(falling, asked).n == 4


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
    norm = {"statistic": "estimator", "metric": "norm", "log": True, "of": "tepo", "than": "token"}
    found = compare(results, comparison(**norm))
    assert found.values == pytest.approx((2.0, 2.0, 2.0)) and (found.n, found.unit) == (3, "initial models")
    assert compare(results, comparison(**norm, updates=4)).mean == pytest.approx(1)
    clip = comparison(statistic="estimator", metric="clip_fraction", of="tepo", than="token")
    assert compare(results, clip).values == pytest.approx((2.0, 3.0, 4.0))
    with pytest.raises(UserError, match="no estimator 'tepo' after 8 updates was measured"):
        compare(results, comparison(**norm, updates=8))
    with pytest.raises(UserError, match="no estimator 'mpo'"):
        compare(results, comparison(**norm | {"of": "mpo"}))


def test_what_is_not_positive_has_no_logarithm(tmp_path: Path) -> None:
    results = write(study_of(2, **INSTRUMENTS), tmp_path, heights)
    write_estimators(results, lambda name, start, updates: {"snr": -0.1 if name == "tepo" else 1.0})
    snr = comparison(statistic="estimator", metric="snr", log=True, of="tepo", than="token")
    with pytest.raises(UserError, match=r"snr of 'tepo' is -0.1 .* no logarithm"):
        compare(results, snr)


def test_a_round_is_its_last_reward_over_pools(tmp_path: Path) -> None:
    """TEPO gains a point per update in pool 0 and three in pool 1, GRPO's loss none: 2 · 2 points at the end."""
    results = write(study_of(3, **INSTRUMENTS), tmp_path, heights)
    write_rounds(results, lambda name, start, pool, updates: 0.3 + (name == "tepo") * updates * (0.01 + 0.02 * pool))
    found = compare(results, comparison(statistic="round", of="tepo", than="token"))
    assert found.values == pytest.approx((4.0, 4.0, 4.0)) and found.unit == "initial models"
    assert compare(results, comparison(statistic="round", of="tepo", than="token", updates=1)).mean == pytest.approx(2)


def test_entropies_are_those_of_the_same_states_before_and_after_a_round(tmp_path: Path) -> None:
    """2 nats before; 1 after GRPO's loss and 1.5 after TEPO. Records of older versions lack them."""
    results = write(study_of(3, **INSTRUMENTS), tmp_path, heights)
    write_rounds(results, lambda *_: 0.3, lambda name: 1.5 if name == "tepo" else 1.0)
    asked = {"statistic": "round", "metric": "entropy"}
    found = compare(results, comparison(**asked, of="tepo", than="token"))
    assert found.values == pytest.approx((0.5,) * 3) and found.unit == "initial models"
    fallen = comparison(**asked, of="token", than="before", claimed="below", log=True)
    assert compare(results, fallen).mean == pytest.approx(-1) and lacking(results.study, results.matrix, fallen) is None
    reward = comparison(statistic="round", of="token", than="before")
    assert compare(results, reward).mean == pytest.approx(0)
    with pytest.raises(UserError, match="no pool_entropy after 1 updates: only the end"):
        compare(results, comparison(**asked, of="tepo", than="token", updates=1))
    write_rounds(results, lambda *_: 0.3)
    with pytest.raises(UserError, match="records of older versions do not"):
        compare(StudyResults(results.folder.path), fallen)


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
    with pytest.raises(UserError, match="not measured on initial model 1: run"):
        compare(results, comparison(statistic="round", of="tepo", than="token"))


def test_the_seeds_that_both_arms_have_are_compared(tmp_path: Path) -> None:
    """Of seeds 0, 1, 2 and 3 with 1 missing, three."""
    results = write(study_of(4), tmp_path, heights)
    for path in results.folder.run("grpo", 1).path.rglob("*.json*"):
        path.unlink()
    for statistic in ("drop", "accuracy"):
        assert compare(results, comparison(statistic=statistic, of="tepo", than="grpo")).n == 3


def test_seeds_that_share_an_initial_model_count_once(tmp_path: Path) -> None:
    """Four seeds on two initial models: the mean of each model's two seeds is one value."""
    results = write(study_of(4, model={"starts": 2}), tmp_path, effects(tepo=2.0))
    one, two = (measures.area(results, arm) for arm in ("tepo", "grpo"))
    each = (one - two).to_numpy()
    expected = student([(each[0] + each[2]) / 2, (each[1] + each[3]) / 2])
    found = measures.over_units(results, one - two)
    assert (found.n, found.unit) == (2, "initial models")
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    for statistic in ("drop", "accuracy", "benchmarks"):
        compared = compare(results, comparison(statistic=statistic, of="tepo", than="grpo"))
        assert (compared.n, compared.unit) == (2, "initial models")
    gain = measures.accuracy_difference(results, "tepo", START)
    assert (gain.n, gain.unit) == (2, "initial models"), "of four final models over two initial ones"
    assert (measures.accuracy_difference(results, "tepo", "grpo").n, len(results.scores("tepo", "count"))) == (2, 2)


def test_seeds_of_an_experiment_share_initial_models_too(tmp_path: Path) -> None:
    """The study's two seeds have their own; those of the experiment take turns. Marks of a figure are units."""
    methods = {"headline": {"methods": ["grpo", "tepo"], "seeds": [0, 1, 2, 3]}}
    results = write(study_of(2, model={"starts": 2}, experiments=methods), tmp_path, effects(tepo=2.0))
    assert measures.over_units(results, measures.area(results, "tepo")).unit == "initial models"
    panel, *_ = figure("convergence", results).axes
    assert max(len(line.get_xdata()) for line in panel.lines if line.get_linestyle() == "None") == 2


def test_no_optimizer_step_before_the_level_counts_as_one(tmp_path: Path) -> None:
    """Every group of GRPO had equal rewards."""
    results = write(study_of(2), tmp_path, lambda arm, seed: [0.3] * 6)
    for path in tmp_path.glob("runs/grpo/*/metrics.jsonl"):
        path.write_text(re.sub(r'"total_updates": \d+', '"total_updates": 0', path.read_text()))
    assert measures.reached(results, "tepo", "grpo", "steps").tolist() == [1.0, 1.0], "two steps to one"
    assert measures.reached(results, "grpo", "tepo", "steps").tolist() == [-1.0, -1.0]
