"""Measures and differences of arms, from records of training whose numbers are known."""

import math
import re

import pytest

from policygrain.analysis import measures
from policygrain.analysis.measures import contrasts
from policygrain.analysis.statistics import student
from policygrain.figures.catalogue import FIGURES
from policygrain.figures.report import comparisons
from policygrain.figures.shown import shown_by
from policygrain.paths import START
from policygrain.results import StudyResults

from ..support.made_up import make_up, make_up_evaluation, table
from .records import effects, study_of, write


def heights(arm: str, seed: int) -> list[float]:
    """GRPO rises from 20% by 10 points a step; TEPO is a point better after the start, and seeds a tenth each."""
    better = 0.01 if arm == "tepo" else 0.0
    return [0.2, *(0.2 + 0.1 * s + better + 0.001 * seed for s in (1, 2, 3, 4))]


def test_the_area_under_a_curve_of_the_seeds_that_both_arms_have(tmp_path):
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


def test_a_run_that_never_arrives_takes_longer_than_any(tmp_path):
    results = write(study_of(3), tmp_path, flat)
    for by in ("steps", "tokens"):
        assert measures.reached(results, "tepo", "grpo", by).tolist() == pytest.approx([-1.0, -1.0, math.inf])
    assert measures.reached(results, "grpo", "grpo", "tokens").tolist() == [0, 0, 0]


def test_no_optimizer_step_before_the_level_counts_as_one(tmp_path):
    """Every group of GRPO had equal rewards; TEPO made two steps."""
    results = write(study_of(2), tmp_path, lambda arm, seed: [0.3] * 6)
    for path in tmp_path.glob("runs/grpo/*/metrics.jsonl"):
        path.write_text(re.sub(r'"total_updates": \d+', '"total_updates": 0', path.read_text()))
    assert measures.reached(results, "tepo", "grpo", "steps").tolist() == [1.0, 1.0]
    assert measures.reached(results, "grpo", "tepo", "steps").tolist() == [-1.0, -1.0]


def test_seeds_that_share_an_initial_model_count_once(tmp_path):
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
    panel, *_ = FIGURES["convergence"](results, shown_by("convergence", results.study)).axes
    assert max(len(line.get_xdata()) for line in panel.lines if line.get_linestyle() == "None") == 2


def test_an_only_initial_model_is_compared_with_every_seed(tmp_path):
    """Of 12 problems it solves 3, and the seeds 4, 6 and 8: 25 points on average, over three seeds."""
    study = study_of(3, experiments={"headline": {"methods": ["grpo", "tepo"]}}, model={"starts": 1})
    results = write(study, tmp_path, effects())
    for model, right in {"start/seed0": 3, "grpo/seed0": 4, "grpo/seed1": 6, "grpo/seed2": 8}.items():
        make_up_evaluation(study, results.folder, model, right)
    d = measures.accuracy_difference(results, "grpo", START)
    assert d.mean == pytest.approx(25) and (d.n, d.unit) == (3, "training seeds")


METHODS = {
    "none": {"base": "grpo", "ratio": "none", "clip": None},
    "token": {"base": "none", "ratio": "token"},
    "sequence": {"base": "none", "ratio": "sequence"},
}
MAP = {
    "methods": ["none", "token", "sequence"],
    "reference": "none",
    "compare": [["sequence", "token"]],
    "margin": 3.0,
    "vary": {"off_policy_steps": [0, 2]},
}
ON_POLICY = {"map": MAP | {"vary": {}}}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """On-policy all are equal. With older rollouts the token ratio is 9 points better and solves 3 of 12, not 6."""
    plain, better = effects(), effects(token=9.0)
    study = study_of(8, methods=METHODS, experiments={"map": MAP})
    folder = tmp_path_factory.mktemp("map")
    right = {"token+off_policy_steps=2": 3}
    return write(study, folder, lambda arm, seed: (better if "off_policy" in arm else plain)(arm, seed), right)


def test_a_difference_is_decided_in_its_own_setting(results):
    found = {(c.pair.arm.name, c.pair.reference.name): c for c in contrasts(results)}
    old = "+off_policy_steps=2"
    pairs = [("token", "none"), ("sequence", "none"), ("sequence", "token")]
    # The last is what staleness itself costs.
    assert set(found) == {*pairs, *((a + old, b + old) for a, b in pairs), (f"none{old}", "none")}
    token = found[f"token{old}", f"none{old}"]
    assert token.decided and token.auc.mean == pytest.approx(8.1, abs=0.5) and token.auc.n == 8
    assert token.sampled is not None and token.sampled.mean == pytest.approx(-25)
    assert token.disagreement, "the area is higher and final accuracy lower"
    assert not found["token", "none"].decided and found[f"sequence{old}", f"token{old}"].decided
    tested = [c for c in found.values() if not c.identical]
    clearest = min(tested, key=lambda c: c.auc.p)
    assert clearest.p == pytest.approx(len(tested) * clearest.auc.p), "Holm's correction"


def test_the_table_has_both_endpoints_length_and_the_outcome(results):
    frame, text = table("contrasts", results)
    assert len(frame) == 7 and text.count("differ; endpoints disagree") == 2
    rows = {(row["of"], row["than"]): row for row in frame.to_dict("records")}
    old = rows["token+off_policy_steps=2", "none+off_policy_steps=2"]
    assert (old["sampled_mean"], old["length_mean"], old["outcome"]) == (pytest.approx(-25), 0, "differ")
    assert rows["sequence+off_policy_steps=2", "none+off_policy_steps=2"]["outcome"] == "differ by less than 3 points"
    assert "| token ratio − no ratio | rollouts 2 steps old | +8." in text
    assert "| no ratio: 2 steps old − on-policy |" in text


def test_equal_areas_are_identical_and_a_study_without_comparisons_has_none(tmp_path):
    study = study_of(3, methods=METHODS, experiments=ON_POLICY, training={"updates_per_batch": 1})
    found = write(study, tmp_path / "equal", lambda arm, seed: [0.3, 0.4 + 0.01 * seed] * 2)
    assert {c.outcome for c in contrasts(found)} == {"identical"}
    alone = study_of(2, experiments={"only": {"methods": ["grpo", "dapo"]}})
    assert "compares no methods" in table("contrasts", write(alone, tmp_path / "none", effects()))[1]


def test_whole_methods_are_compared_with_their_bases_and_corrected_apart(tmp_path):
    """The headline's with GRPO, in two settings each; own methods with what they change."""
    found = contrasts(write(study_of(4), tmp_path, effects(tepo=9.0)))
    assert {c.pair.reference.method_name for c in found} == {"grpo"} and all(c.pair.whole for c in found)
    (tepo,) = (c for c in found if c.pair.arm.name == "tepo+updates_per_batch=16")
    assert tepo.decided and len(found) == 6
    own = {"pairs": {"base": "dapo", "clip": {"low": 0.1}}, "more": {"base": "pairs", "clip": {"low": 0.2}}}
    study = study_of(4, methods=own, experiments={"headline": {"methods": ["grpo", "dapo", *own]}})
    said = " ".join(comparisons(StudyResults(make_up(study, tmp_path / "own", dict.fromkeys(own, 9)))))
    assert "pairs − DAPO (whole methods: clip): +0.0 [+0.0, +0.0] points in training (inconclusive, p = 1)" in said
    assert "; final accuracy +25.0 [" in said and "more − pairs (whole methods: clip): +0.0 [" in said


@pytest.mark.parametrize("removed", ["*.json*", "summary.json"], ids=["no records", "not ended"])
def test_missing_records_count_in_the_correction(removed, tmp_path):
    """A run that has not ended has none."""
    found = write(study_of(8, methods=METHODS, experiments=ON_POLICY), tmp_path, effects(token=9.0))
    complete = {c.pair.arm.name: c.p for c in contrasts(found) if c.pair.reference.name == "none"}
    for path in tmp_path.glob(f"runs/sequence/*/{removed}"):
        path.unlink()
    (left,) = contrasts(StudyResults(found.folder.path))
    assert left.p == complete["token"]
