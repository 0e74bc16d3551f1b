"""Log-probabilities of the old policy from the engine; rollouts of another policy than the one that is trained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.model.engine import Response
from policygrain.model.loading import load_model
from policygrain.model.sequences import pack
from policygrain.model.torch_engine import TorchEngine
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
        training={"updates_per_batch": 1, "group": 12, "max_mismatch": 10, **training},
        methods=CORRECTED,
        experiments={"headline": {"methods": [name]}},
    )
    return read_json_lines(train_small(study, run, *made) / "metrics.jsonl")


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """Another policy: ``model`` with noise on its weights."""
    other, draw = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=draw).to(parameter.device))
    return other


@pytest.fixture
def by_another_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine samples from another policy than the one that is trained."""
    real = TorchEngine.load_weights
    monkeypatch.setattr(TorchEngine, "load_weights", lambda self, model: real(self, moved(model)))


@pytest.mark.usefixtures("by_another_policy")
def test_the_ratio_is_to_the_trainers_policy_unless_the_method_asks_for_the_engines(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = trained(made, tmp_path / "old")[:-1]
    assert min(row["mismatch_mean"] for row in rows) > 0.01
    assert all(row["ratio_mean"] == pytest.approx(1, abs=1e-5) and row["kl_old"] < 1e-9 for row in rows)
    assert trained(made, tmp_path / "rollout", "bypass")[0]["ratio_variance"] > 1e-4


@pytest.mark.usefixtures("by_another_policy")
@pytest.mark.parametrize("name", ["grpo", "corrected"])
def test_log_probs_of_another_policy_are_not_taken_for_the_old_ones(
    name: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    one, other = (
        trained(made, tmp_path / source, name, old_log_probs=source, steps=2) for source in ("trainer", "engine")
    )
    assert one == other
    assert ("correction_effective_share" in one[0]) is (name == "corrected")


@pytest.mark.usefixtures("by_another_policy")
def test_a_run_stops_where_the_mismatch_is_above_its_bound(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"more than 0\.001 \(training\.max_mismatch\)"):
        trained(made, tmp_path / "run", max_mismatch=0.001)


@pytest.mark.usefixtures("by_another_policy")
def test_the_engine_records_the_policy_that_sampled_and_weights_lead_back_to_the_trainers(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of π/μ over samples of μ is 1."""
    taken: list[Rollouts] = []
    prepare = module.prepare

    def kept(rollouts: Rollouts, *rest: Any) -> Any:
        taken.append(rollouts)
        return prepare(rollouts, *rest)

    monkeypatch.setattr("policygrain.train.rollout_batch.prepare", kept)
    trained(made, tmp_path / "run", steps=1, group=400)
    rollouts, settings = taken[0], small_study().training
    model, tokenizer = load_model(str(made[1]))
    responses = [r for row in rollouts.responses for r in row]
    prompts = [p for p, row in zip(rollouts.prompts, rollouts.responses, strict=True) for _ in row]
    sequences = pack(prompts, [r.ids for r in responses], tokenizer.pad_token_id)
    engine = torch.zeros(sequences.mask.shape)
    for row, response in enumerate(responses):
        engine[row, : len(response.ids)] = torch.tensor(response.log_probs)
    with torch.no_grad():
        sampler, trainer = (score_sequences(m, sequences, settings).log_probs for m in (moved(model), model))
    torch.testing.assert_close(torch.where(sequences.mask, sampler, 0.0), engine, atol=1e-4, rtol=0)
    weights = rollout_weights(
        trainer, engine, sequences.mask, Sampler(correction_cap=1e9, correction_grain="sequence")
    )[:, 0].double()
    error = float(weights.std()) / len(weights) ** 0.5
    assert float(weights.mean()) == pytest.approx(1, abs=5 * error) and 0 < error < 0.1
