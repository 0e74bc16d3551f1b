"""Estimators of a real policy: what must hold on-policy, the same batches for all, and the record."""

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from policygrain.files import json_lines
from policygrain.model.scoring import score_tokens
from policygrain.objective.terms import Aggregation
from policygrain.paths import DataFolder
from policygrain_lab.measured import gradients
from policygrain_lab.measured.estimators import Estimation
from policygrain_lab.measured.gradients import flat_gradient, measure_truths
from policygrain_lab.measured.instrument import measure
from policygrain_lab.measured.measured_policy import open_measured_policy, plain
from policygrain_lab.measured.options import Estimators
from policygrain_lab.measured.records import EstimatorRow, EstimatorsRecord
from tests.support.small import small_study

METHODS: dict[str, Any] = {
    "token": {"ratio": "token", "clip": None, "advantage": "dr_grpo"},
    "sequence": {"base": "token", "ratio": "sequence"},
    "none": {"base": "token", "ratio": "none"},
    "per_response": {"base": "token", "aggregation": "seq_mean_token_mean"},
    "bonus": {"base": "token", "penalties": [{"name": "entropy_bonus", "coefficient": 0.5}]},
    "anchored": {"base": "token", "penalties": [{"name": "kl", "coefficient": 0.1}]},
    "covariance": {"base": "token", "clip": {"name": "clip_cov", "fraction": 0.5, "cov_low": 0.0}},
}
STUDY = small_study(methods=METHODS, training={"group": 8})
SPEC = Estimators(reference="token", methods=tuple(METHODS), steps=(1,), updates=(0, 2), batches=30, true_prompts=200)


@pytest.fixture(scope="module")
def measured(made):
    return measure(Estimation, SPEC, STUDY, 0, str(made[1]), DataFolder(made[0]))


def rows_of(record: EstimatorsRecord, updates: int) -> dict[str, EstimatorRow]:
    return {row.estimator: row for row in record.rows if row.updates == updates}


def test_the_record_is_complete(measured):
    assert [(r.steps, r.updates, r.estimator) for r in measured.rows] == [
        (1, updates, name) for updates in (0, 2) for name in METHODS
    ]
    assert measured.settings["batches"] == 30 and measured.settings["methods"]["none"]["ratio"] == {"name": "none"}
    assert (measured.seed, measured.reference, measured.batches) == (0, "token", 30)
    assert (measured.true_responses, measured.responses_per_batch) == (1600, 24)
    assert set(measured.accuracy) == {"1/0", "1/2"} and all(0 < a < 1 for a in measured.accuracy.values())


def test_on_policy_all_ratios_are_the_gradient(measured):
    rows = rows_of(measured, 0)
    for name in ("sequence", "none"):
        for key in ("bias_cosine", "length", "snr", "cosine", "norm"):
            assert getattr(rows[name], key) == pytest.approx(getattr(rows["token"], key), rel=1e-3, abs=1e-4), key
        assert rows[name].cosine_difference == pytest.approx((0, 0, 0), abs=1e-4)
    # The advantage of `token` is the true gradient's; how precise the intervals are is tested where signals are known.
    for name in ("token", "per_response"):
        for key in ("bias_cosine", "length"):
            mean, low, high = getattr(rows[name], key)
            assert abs(mean - 1) <= high - low, (name, key)  # four standard errors
    assert rows["token"].ratio_variance == pytest.approx(0, abs=1e-8)
    assert rows["token"].effective_sample_share == pytest.approx(1)


@pytest.mark.parametrize("name", list(Aggregation.choices))
def test_the_true_gradient_of_an_aggregation_is_that_of_its_unbiased_estimator(name, made):
    """On-policy the update of the token ratio without a clip, on the fresh responses themselves, is exactly it."""
    study = small_study(methods={"own": {"base": "token", "aggregation": name}} | METHODS)
    chosen = plain(study.method("own"))
    with open_measured_policy(study, "token", 0, str(made[1]), DataFolder(made[0])) as bench:
        pool = bench.pool(9, "truth", 1, needs=frozenset({"groups"}))
        (update,) = gradients.estimate(bench, pool.batch, pool.rewards, [chosen], 7).updates
        (truth,), _ = measure_truths(bench, 9, 3, [chosen.aggregation], 1)
    assert update is not None and torch.linalg.vector_norm(update) > 0
    assert torch.allclose(truth.mean, update, rtol=1e-3, atol=1e-5 * float(update.abs().max()))


def test_off_policy_ratios_differ_as_they_must(measured):
    rows = rows_of(measured, 2)
    assert rows["token"].ratio_variance > rows["sequence"].ratio_variance > rows["none"].ratio_variance == 0
    assert 0 < rows["token"].effective_sample_share < 1


def test_the_order_of_the_methods_does_not_matter_and_a_repetition_is_equal(measured, made):
    turned = replace(SPEC, methods=tuple(reversed(METHODS)), updates=(2,))
    found = measure(Estimation, turned, STUDY, 0, str(made[1]), DataFolder(made[0]))
    assert found.accuracy["1/2"] == measured.accuracy["1/2"]
    assert rows_of(found, 2) == rows_of(measured, 2)


def test_an_update_is_the_gradient_that_training_follows(made):
    """The sum over weighted backward passes equals one backward pass of the loss itself."""
    with open_measured_policy(STUDY, "token", 0, str(made[1]), DataFolder(made[0])) as bench:
        pool = bench.pool(3, "test", needs=frozenset({"reference", "groups"}))
        bench.update(pool.batch, bench.reference)
        methods = [plain(STUDY.method(name)) for name in METHODS if name != "covariance"]
        found = gradients.estimate(bench, pool.batch, pool.rewards, methods, 7)
        scores = score_tokens(bench.policy.model, pool.batch.rollouts, 1.0)
        for chosen, update in zip(methods, found.updates, strict=True):
            advantages = chosen.advantage(pool.rewards).flatten()
            tokens = pool.batch.tokens.replace(
                log_probs=scores.log_probs, entropy=scores.entropy, advantages=advantages
            )
            loss = chosen.loss(tokens).loss
            expected = flat_gradient(bench.parameters, [loss], [torch.tensor(-1.0)], again=True)
            assert update is not None
            assert torch.linalg.vector_norm(update - expected) < 1e-4 * torch.linalg.vector_norm(expected), chosen.name


def test_a_start_that_solves_nothing_has_no_rows_and_a_note(made, tmp_path):
    data = DataFolder(shutil.copytree(made[0], tmp_path / "data"))
    lines = [json.dumps(row | {"answer": "-7"}) for _, row in json_lines(data.train)]
    data.train.write_text("\n".join(lines) + "\n")
    found = measure(Estimation, replace(SPEC, updates=(1,), batches=3, true_prompts=4), STUDY, 0, str(made[1]), data)
    assert found.rows == [] and found.accuracy == {"1/1": 0.0}
    assert len(found.notes) == 1 and "true gradient cannot be told from 0" in found.notes[0]
