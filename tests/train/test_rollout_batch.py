"""Log-probabilities of the old policy from the engine; rollouts sampled with rounded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.model.engine import Response
from policygrain.model.loading import load_model
from policygrain.model.sequences import pack
from policygrain.model.torch_engine import TorchEngine
from policygrain.model.weights import rounded_copy
from policygrain.objective import Sampler, method
from policygrain.objective.correction import rollout_weights
from policygrain.train import rollout_batch as module
from policygrain.train.policy import score_sequences
from policygrain.train.rollout_batch import _needs_log_probs_alone
from policygrain.train.rollouts import Rollouts

from ..support.small import small_study, train_small

ENGINE = {"old_log_probs": "engine", "prompts_per_step": 8}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the trainer scores for the old policy."""
    rows: list[int] = []
    real = module._score_rows

    def counted(policy, sequences, settings, chosen):  # type: ignore[no-untyped-def]
        found = real(policy, sequences, settings, chosen)
        rows.append(len(found.log_probs))
        return found

    monkeypatch.setattr(module, "_score_rows", counted)
    return rows


def test_a_quarter_of_the_groups_is_scored_and_training_is_the_same_up_to_rounding(
    made: tuple[Path, Path], tmp_path: Path, scored: list[int]
) -> None:
    runs = {
        source: read_json_lines(
            train_small(small_study(training={**ENGINE, "old_log_probs": source}), tmp_path / source, *made)
            / "metrics.jsonl"
        )
        for source in ("trainer", "engine")
    }
    assert scored == [8 * 4] * 4 + [2 * 4] * 4, "of 8 groups of 4: all, or 2 of them"
    one, other = runs["trainer"][0], runs["engine"][0]
    for key in ("loss", "ratio_mean", "gradient_norm", "reward_mean", "clip_fraction_low"):
        assert one[key] == pytest.approx(other[key], abs=1e-5), key


def test_an_engine_that_differs_is_not_believed(
    made: tuple[Path, Path], tmp_path: Path, scored: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TorchEngine.generate

    def off(self, requests):  # type: ignore[no-untyped-def]
        return [Response(r.ids, r.finished, [x - 0.005 for x in r.log_probs]) for r in real(self, requests)]

    monkeypatch.setattr(TorchEngine, "generate", off)
    run = train_small(small_study(training=ENGINE), tmp_path / "run", *made)
    assert scored == [2 * 4, 8 * 4] * 4, "checked on a quarter, then all are scored"
    first = read_json_lines(run / "metrics.jsonl")[0]
    assert first["mismatch_mean"] == pytest.approx(0.005, abs=1e-4) and first["ratio_mean"] == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("grpo", True),
        ("dapo", True),
        ("mpo", True),
        ("gspo", True),
        ("tepo", False),
        ("mpo_heads", False),
        ("kl_cov", False),
    ],
)
def test_methods_that_read_more_than_log_probs_are_scored_by_the_trainer(name: str, alone: bool) -> None:
    """TEPO's mask needs entropies of the old policy, MPO's heads their predictions."""
    assert _needs_log_probs_alone(method(name)) is alone


CORRECTED = {"corrected": {"base": "grpo", "sampler": {"correction_cap": 2.0}}}


def trained(made: tuple[Path, Path], run: Path, name: str = "grpo", **training: Any) -> list[dict[str, Any]]:
    """Metrics of a run with one update per batch."""
    study = small_study(
        training={"updates_per_batch": 1, "group": 12, **training},
        methods=CORRECTED,
        experiments={"headline": {"methods": [name]}},
    )
    return read_json_lines(train_small(study, run, *made) / "metrics.jsonl")


def test_the_ratio_to_the_old_policy_stays_1_and_validation_is_of_the_exact_weights(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    exact, rounded, again = (
        trained(made, tmp_path / name, **bits)
        for name, bits in (("exact", {}), ("rounded", {"sampler_bits": 3}), ("again", {"sampler_bits": 3}))
    )
    steps = rounded[:-1]
    assert rounded == again
    assert exact[0]["mismatch_mean"] < 1e-5 and min(row["mismatch_mean"] for row in steps) > 0.01
    assert all(row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["kl_old"] < 1e-9 for row in steps)
    # The initial model samples the validation responses of step 0, whichever weights sample the rollouts.
    assert rounded[0]["validation_length"] == exact[0]["validation_length"]
    assert any(rounded[0][key] != exact[0][key] for key in ("reward_mean", "response_length_mean"))


def test_a_ratio_to_the_engine_is_not_1(made: tuple[Path, Path], tmp_path: Path) -> None:
    """It corrects for the rounded weights itself; with the exact ones both policies are the same."""
    exact, rounded = (trained(made, tmp_path / f"{bits}", "bypass", sampler_bits=bits)[0] for bits in (None, 3))
    assert exact["ratio_variance"] < 1e-9 and rounded["ratio_variance"] > 1e-4


@pytest.mark.parametrize("name", ["grpo", "corrected"])
def test_old_log_probs_of_the_engine_are_not_taken(name: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = (
        trained(made, tmp_path / source, name, sampler_bits=4, old_log_probs=source) for source in ("trainer", "engine")
    )
    assert one == other
    assert ("correction_effective_share" in one[0]) is (name == "corrected")


def test_a_given_bound_of_the_mismatch_still_holds(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"more than 0\.001 \(training\.max_mismatch\)"):
        trained(made, tmp_path / "run", sampler_bits=3, max_mismatch=0.001)


def test_the_engine_records_the_policy_that_sampled_and_weights_lead_back_to_the_trainers(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities of the rollouts are those of the rounded model, and the mean of π/μ over its samples is 1."""
    taken: list[Rollouts] = []
    prepare = module.prepare

    def kept(rollouts: Rollouts, *rest: Any) -> Any:
        taken.append(rollouts)
        return prepare(rollouts, *rest)

    monkeypatch.setattr("policygrain.train.rollout_batch.prepare", kept)
    trained(made, tmp_path / "run", sampler_bits=4, steps=1, group=400)
    rollouts, settings = taken[0], small_study().training
    model, tokenizer = load_model(str(made[1]))
    responses = [r for row in rollouts.responses for r in row]
    prompts = [p for p, row in zip(rollouts.prompts, rollouts.responses, strict=True) for _ in row]
    sequences = pack(prompts, [r.ids for r in responses], tokenizer.pad_token_id)
    engine = torch.zeros(sequences.mask.shape)
    for row, response in enumerate(responses):
        engine[row, : len(response.ids)] = torch.tensor(response.log_probs)
    with torch.no_grad():
        sampler, trainer = (score_sequences(m, sequences, settings).log_probs for m in (rounded_copy(model, 4), model))
    torch.testing.assert_close(torch.where(sequences.mask, sampler, 0.0), engine, atol=1e-4, rtol=0)
    sampler_settings = Sampler(correction_cap=1e9, correction_grain="sequence")
    weights = rollout_weights(trainer, engine, sequences.mask, sampler_settings)[:, 0].double()
    error = float(weights.std()) / len(weights) ** 0.5
    assert float(weights.mean()) == pytest.approx(1, abs=5 * error) and 0 < error < 0.05
