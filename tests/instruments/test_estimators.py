"""Estimators of a real policy: what must hold on-policy, the same batches for all, and the record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain import cli
from policygrain.files import read_json_lines
from policygrain.instruments import gradients
from policygrain.instruments.estimators import Estimation
from policygrain.instruments.gradients import flat_gradient, measure_truths
from policygrain.instruments.instrument import measure
from policygrain.instruments.measured_policy import open_measured_policy, plain
from policygrain.measurements import EstimatorRow, EstimatorsRecord
from policygrain.model.logprobs import score_tokens
from policygrain.objective import method
from policygrain.objective.aggregate import Aggregation
from policygrain.paths import DataFolder, StudyFolder
from policygrain.records import read_record
from policygrain.study import Study
from policygrain.study.fingerprint import Fingerprints

from ..support.small import small_study, write_study

METHODS: dict[str, Any] = {
    "token": {"ratio": "token", "clip": None, "advantage": "dr_grpo"},
    "sequence": {"base": "token", "ratio": "sequence"},
    "none": {"base": "token", "ratio": "none"},
    "per_response": {"base": "token", "aggregation": "seq_mean_token_mean"},
    "bonus": {"base": "token", "penalties": [{"name": "entropy_bonus", "coefficient": 0.5}]},
    "anchored": {"base": "token", "penalties": [{"name": "kl", "coefficient": 0.1}]},
    "covariance": {"base": "token", "clip": {"name": "clip_cov", "fraction": 0.5, "cov_low": 0.0}},
}
SECTION: dict[str, Any] = {
    "reference": "token",
    "methods": list(METHODS),
    "steps": [1],
    "updates": [0, 2],
    "batches": 30,
    "prompts_per_update": 3,
    "true_prompts": 200,
}


def study_of(**changes: Any) -> Study:
    return small_study(methods=METHODS, estimators=SECTION | changes, training={"group": 8})


@pytest.fixture(scope="module")
def measured(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> EstimatorsRecord:
    out = tmp_path_factory.mktemp("estimators") / "seed0.json"
    found = measure(Estimation, study_of(), 0, str(made[1]), DataFolder(made[0]), out)
    assert read_record(EstimatorsRecord, out, "") == found
    return found


def rows_of(record: EstimatorsRecord, updates: int) -> dict[str, EstimatorRow]:
    return {row.estimator: row for row in record.rows if row.updates == updates}


def test_the_record_is_complete(measured: EstimatorsRecord) -> None:
    assert [(r.steps, r.updates, r.estimator) for r in measured.rows] == [
        (1, updates, name) for updates in (0, 2) for name in METHODS
    ]
    assert measured.settings == Fingerprints(study_of()).instrument_settings("estimators", 0)
    assert (measured.seed, measured.reference, measured.batches) == (0, "token", 30)
    assert (measured.true_responses, measured.responses_per_batch) == (1600, 24)
    assert set(measured.accuracy) == {"1/0", "1/2"} and all(0 < a < 1 for a in measured.accuracy.values())


def test_on_policy_all_ratios_are_the_gradient(measured: EstimatorsRecord) -> None:
    rows = rows_of(measured, 0)
    for name in ("sequence", "none"):
        for key in ("bias_cosine", "length", "snr", "cosine", "norm"):
            assert getattr(rows[name], key) == pytest.approx(getattr(rows["token"], key), rel=1e-3, abs=1e-4), key
        assert rows[name].cosine_difference == pytest.approx((0, 0, 0), abs=1e-4)
    # The advantage of `token` is the true gradient's; how precise the intervals are is tested where signals are known.
    for name in ("token", "per_response"):
        for key in ("bias_cosine", "length"):
            _, low, high = getattr(rows[name], key)
            assert low <= 1 <= high, (name, key)
    assert rows["token"].ratio_variance == pytest.approx(0, abs=1e-8)
    assert rows["token"].effective_sample_share == pytest.approx(1)


@pytest.mark.parametrize("name", list(Aggregation.choices))
def test_the_true_gradient_of_an_aggregation_is_that_of_its_unbiased_estimator(
    name: str, made: tuple[Path, Path]
) -> None:
    """On-policy the update of the token ratio without a clip, on the fresh responses themselves, is exactly it."""
    study = small_study(methods={"own": {"base": "token", "aggregation": name}} | METHODS)
    chosen = plain(method("own", study.methods))
    with open_measured_policy(study, "token", 0, str(made[1]), DataFolder(made[0])) as bench:
        pool = bench.pool(9, "truth", 1, needs=frozenset({"groups"}))
        (update,) = gradients.estimate(bench, pool.batch, pool.rollouts.rewards, [chosen], 7).updates
        (truth,), _ = measure_truths(bench, 9, 3, [chosen.aggregation], 1)
    assert update is not None and torch.linalg.vector_norm(update) > 0
    assert torch.allclose(truth.mean, update, rtol=1e-3, atol=1e-5 * float(update.abs().max()))


def test_off_policy_ratios_differ_as_they_must(measured: EstimatorsRecord) -> None:
    rows = rows_of(measured, 2)
    assert rows["token"].ratio_variance > rows["sequence"].ratio_variance > rows["none"].ratio_variance == 0
    assert 0 < rows["token"].effective_sample_share < 1


def test_the_order_of_the_methods_does_not_matter_and_a_repetition_is_equal(
    measured: EstimatorsRecord, made: tuple[Path, Path], tmp_path: Path
) -> None:
    turned = study_of(methods=list(reversed(METHODS)), updates=[2])
    found = measure(Estimation, turned, 0, str(made[1]), DataFolder(made[0]), tmp_path / "a.json")
    assert found.accuracy["1/2"] == measured.accuracy["1/2"]
    assert rows_of(found, 2) == rows_of(measured, 2)


def test_an_update_is_the_gradient_that_training_follows(made: tuple[Path, Path]) -> None:
    """The sum over weighted backward passes equals one backward pass of the loss itself."""
    study = study_of()
    with open_measured_policy(study, "token", 0, str(made[1]), DataFolder(made[0])) as bench:
        pool = bench.pool(3, "test", needs=frozenset({"reference", "groups"}))
        bench.update(pool.batch, bench.reference)
        methods = [plain(method(name, study.methods)) for name in METHODS if name != "covariance"]
        found = gradients.estimate(bench, pool.batch, pool.rollouts.rewards, methods, 7)
        scores = score_tokens(bench.policy.model, pool.batch.sequences, 1.0)
        for chosen, update in zip(methods, found.updates, strict=True):
            advantages = chosen.advantages(pool.rollouts.rewards).flatten()
            tokens = pool.batch.tokens.replace(
                log_probs=scores.log_probs, entropy=scores.entropy, advantages=advantages
            )
            loss = chosen.loss(tokens).loss
            expected = flat_gradient(bench.parameters, [loss], [torch.tensor(-1.0)], again=True)
            assert update is not None
            assert torch.linalg.vector_norm(update - expected) < 1e-4 * torch.linalg.vector_norm(expected), chosen.name


def test_a_start_that_solves_nothing_has_no_rows_and_a_note(made: tuple[Path, Path], tmp_path: Path) -> None:
    data = DataFolder(shutil.copytree(made[0], tmp_path / "data"))
    lines = [json.dumps(row | {"answer": "-7"}) for row in read_json_lines(data.train)]
    data.train.write_text("\n".join(lines) + "\n")
    study = study_of(updates=[1], batches=3, true_prompts=4)
    found = measure(Estimation, study, 0, str(made[1]), data, tmp_path / "a.json")
    assert found.rows == [] and found.accuracy == {"1/1": 0.0}
    assert len(found.notes) == 1 and "true gradient cannot be told from 0" in found.notes[0]


def test_the_command(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], in_root: Path
) -> None:
    study = small_study(
        methods=METHODS,
        estimators=SECTION
        | {"methods": ["token", "none"], "steps": [0], "updates": [1], "batches": 6, "true_prompts": 12},
    )
    path = write_study(tmp_path / "study.yaml", study.model_dump(mode="json", exclude_unset=True))
    results, done = StudyFolder(tmp_path / "results"), tmp_path / "done" / "estimators-seed0.json"
    shutil.copytree(made[1], results.start(0).path)
    # Problems are prepared where there are none.
    command = ["estimators", "--config", str(path), "--results", str(results.path)]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "bias cosine" in printed and "reference" in printed and "±" in printed
    first = results.estimators(0).read_bytes()
    assert cli.main([*command, "--done", str(done), "--seed", "0"]) == 0
    assert results.estimators(0).read_bytes() == first and capsys.readouterr().out == printed
    assert set(json.loads(done.read_text())["results"]) == {"estimators/seed0"}
