"""One optimizer step of the trainer, split, padded and ordered in every way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from policygrain.model.loading import load_model
from policygrain.train.policy import Policy, build_heads, make_scaler
from policygrain.train.rollout_batch import TrainingBatch
from policygrain.train.update import minibatches, update

from ..support.batches import METHODS
from ..support.small import small_study
from ..support.training_batches import random_batch


def gradient_of(start: Path, name: str, batch: TrainingBatch, budget: int) -> tuple[torch.Tensor, dict[str, float]]:
    """The real `update` with a plain SGD of rate 1: the change of weights is the gradient."""
    model, _ = load_model(str(start), dtype="float64")
    settings = small_study().training.model_copy(update={"micro_batch_tokens": budget, "max_grad_norm": 1e9})
    chosen = METHODS[name]
    heads = build_heads(model, chosen, seed=0)
    parameters = [*model.parameters(), *(heads.parameters() if heads else ())]
    before = torch.cat([p.detach().flatten().clone() for p in parameters])
    sgd = torch.optim.SGD(parameters, lr=1.0)
    metrics = update(Policy(model, None, None, heads, sgd, make_scaler(settings)), batch, chosen, settings)
    after = torch.cat([p.detach().flatten() for p in parameters])
    return before - after, metrics


@pytest.mark.parametrize("name", METHODS)
def test_a_step_does_not_depend_on_how_it_is_split_padded_or_ordered(name: str, made: tuple[Path, Path]) -> None:
    whole, metrics = gradient_of(made[1], name, random_batch(), budget=10**6)
    assert whole.norm() > 1e-6
    order = torch.tensor([7, 2, 9, 0, 5, 1, 8, 3, 6, 4])
    variants = {
        "a row at a time": (random_batch(), 1),
        "padded, in some micro-batches": (random_batch(left=5, right=8), 60),
        "shuffled": (random_batch().rows(order), 60),
    }
    for what, (batch, budget) in variants.items():
        # float32 log-softmax inside a float64 model bounds the agreement.
        gradient, same = gradient_of(made[1], name, batch, budget)
        assert torch.allclose(gradient, whole, rtol=1e-4, atol=1e-6 * whole.norm().item()), what
        for key, value in metrics.items():
            assert same[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (what, key)


def test_minibatches_hold_each_response_once_and_follow_the_seed() -> None:
    """12 prompts of 4 responses in 3 optimizer steps of 16 responses each, of whole groups."""
    cut = minibatches(12, 4, 3, seed=0)
    assert [len(rows) for rows in cut] == [16, 16, 16]
    assert sorted(torch.cat(cut).tolist()) == list(range(48))
    assert all(
        sorted(rows.tolist()) == sorted(4 * g + i for g in {r // 4 for r in rows.tolist()} for i in range(4))
        for rows in cut
    )
    assert torch.equal(torch.cat(cut), torch.cat(minibatches(12, 4, 3, seed=0)))
    assert not torch.equal(torch.cat(cut), torch.cat(minibatches(12, 4, 3, seed=1)))
    assert [len(rows) for rows in minibatches(1, 2, 5, seed=0)] == [1, 1], "no more steps than responses"


def test_each_pass_over_a_batch_has_every_response_once_and_the_first_is_that_of_one_pass() -> None:
    passes = minibatches(12, 4, 3, seed=0, epochs=2)
    first, second = torch.cat(passes[:3]), torch.cat(passes[3:])
    assert torch.equal(first, torch.cat(minibatches(12, 4, 3, seed=0)))
    assert sorted(second.tolist()) == list(range(48)) and not torch.equal(first, second)
