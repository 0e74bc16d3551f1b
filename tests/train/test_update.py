"""One optimizer step, split and ordered in every way; what functions that declare their needs are given."""

import sys
from pathlib import Path

import pytest
import torch

from policygrain.model.attention import Varlen
from policygrain.model.loading import load_model
from policygrain.model.scoring import score_tokens
from policygrain.objective import method
from policygrain.objective.batch import TokenBatch
from policygrain.study.schema import Model
from policygrain.train.batch import Batch, minibatches
from policygrain.train.policy import Policy, build_heads, open_policy, update

from ..support.batches import METHODS
from ..support.small import small_study, train_small
from ..support.training_batches import random_batch


def gradient_of(start: Path, name: str, batch: Batch, budget: int) -> tuple[torch.Tensor, dict[str, float]]:
    """The real `update` with a plain SGD of rate 1: the change of weights is the gradient."""
    model, _ = load_model(str(start), dtype="float64")
    settings = small_study().training.model_copy(update={"micro_batch_tokens": budget, "max_grad_norm": 1e9})
    chosen = METHODS[name]
    heads = build_heads(model, chosen, seed=0)
    parameters = [*model.parameters(), *(heads.parameters() if heads else ())]
    before = torch.cat([p.detach().flatten().clone() for p in parameters])
    sgd = torch.optim.SGD(parameters, lr=1.0)
    metrics = update(Policy(model, None, None, heads, sgd), batch, chosen, settings)
    after = torch.cat([p.detach().flatten() for p in parameters])
    return before - after, metrics


@pytest.mark.parametrize("name", METHODS)
def test_a_step_does_not_depend_on_how_it_is_split_or_ordered(name, made):
    whole, metrics = gradient_of(made[1], name, random_batch(), budget=10**6)
    assert whole.norm() > 1e-6
    order = torch.tensor([7, 2, 9, 0, 5, 1, 8, 3, 6, 4])
    variants = {
        "a row at a time": (random_batch(), 1),
        "in some micro-batches": (random_batch(), 60),
        "shuffled": (random_batch().rows(order), 60),
    }
    for what, (batch, budget) in variants.items():
        # float32 log-softmax inside a float64 model bounds the agreement.
        gradient, same = gradient_of(made[1], name, batch, budget)
        assert torch.allclose(gradient, whole, rtol=1e-4, atol=1e-6 * whole.norm().item()), what
        for key, value in metrics.items():
            assert same[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (what, key)


@pytest.mark.parametrize("name", ["grpo", "dapo", "tepo", "mpo", "gspo"])
def test_a_pass_is_on_the_models_device_and_reads_no_number_before_its_end(name, made, monkeypatch):
    """On the meta device, where a tensor of the host is refused, and the value of a tensor too: nothing waits there."""

    def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return query + 0 * (key.sum() + value.sum())

    monkeypatch.setattr("policygrain.model.attention.varlen_attn", flash)
    monkeypatch.setattr(Varlen, "runs", lambda *_: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)  # it does not know this device
    model, chosen, batch = load_model(str(made[1]))[0].to("meta"), method(name), random_batch()
    fields = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in vars(batch.tokens).items()}
    tokens = TokenBatch(**{k: v for k, v in fields.items() if k != "whole"} | {"future_log_probs": None})
    scores = score_tokens(model, batch.rollouts, 1.0, "entropy_gradient" in chosen.needs)
    out = chosen.loss(tokens.replace(log_probs=scores.log_probs, entropy=scores.entropy, step=chosen.step_of(tokens)))
    out.loss.backward()
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in model.parameters())


@pytest.mark.needs("gpu")
@pytest.mark.parametrize("name", ["grpo", "tepo", "mpo", "gspo"])
def test_an_update_on_a_gpu_is_the_same_bit_for_bit(name, made):
    """In bfloat16 passes, with the flash kernel, many tokens and shared prompts: what resuming a run needs."""
    settings = small_study(training={"compute": "bfloat16", "micro_batch_tokens": 4096}).training
    batch, results = random_batch(), []
    for _ in range(3):
        policy = open_policy(str(made[1]), Model(), method(name), settings, 0)
        for _ in range(3):
            update(policy, batch, method(name), settings)
        results.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_minibatches_hold_each_response_once_in_each_pass_and_follow_the_seed():
    """12 prompts of 4 responses in 3 optimizer steps of 16 responses each, of whole groups."""
    one, two, other = (minibatches(12, 4, 3, seed, epochs) for seed, epochs in ((0, 1), (0, 2), (1, 1)))
    assert [len(rows) for rows in two] == [16] * 6
    for cut in (one, two[3:], other):
        assert sorted(torch.cat(cut).tolist()) == list(range(48))
        assert all([*(rows // 4).unique(return_counts=True)[1]] == [4] * 4 for rows in cut)
    assert all(torch.equal(a, b) for a, b in zip(one, two[:3], strict=True))
    assert not torch.equal(torch.cat(one), torch.cat(two[3:])) and not torch.equal(torch.cat(one), torch.cat(other))
    assert [len(rows) for rows in minibatches(1, 2, 5, seed=0)] == [1, 1], "no more steps than responses"


OWN = """
from policygrain.objective import needs
from policygrain.objective.clip import NoClip

SEEN = []

@needs("step_log_probs", "groups", "reference")
def watched(ratio, batch):
    SEEN.append(batch)
    return NoClip()(ratio, batch)
"""


def test_a_function_that_reads_the_steps_tensors_must_declare_it():
    batch = random_batch().tokens
    with pytest.raises(ValueError, match=r'@needs\("step_log_probs"\)'):
        _ = batch.replace(step=method("grpo").step_of(batch)).step_tensors


def test_a_function_reads_the_step_under_the_current_policy_if_it_declares_that(made, tmp_path, monkeypatch):
    (tmp_path / "watching_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    bonus = {"name": "entropy_bonus", "coefficient": 1.0}  # it has a gradient whatever the rewards are
    study = small_study(
        methods={"mine": {"base": "grpo", "clip": "watching_parts:watched", "penalties": [bonus]}},
        experiments={"headline": {"methods": ["mine"]}},
        training={"steps": 1, "learning_rate": 0.01},
    )
    train_small(study, tmp_path / "run", *made)
    # Two updates of half of the 4 · 4 responses each, in one micro-batch, whose rows are in another order.
    seen = sys.modules["watching_parts"].SEEN
    batches = [batch for batch in seen if batch.step is not None and len(batch.step_tensors.mask) == 8]
    assert len(batches) == 2
    for batch in batches:
        own, whole = (tokens.log_probs.detach().sum(1).sort().values for tokens in (batch, batch.step_tensors))
        torch.testing.assert_close(own, whole, rtol=1e-4, atol=1e-4)
    last = batches[-1].step_tensors
    assert (last.log_probs - last.old_log_probs).abs().max() > 1e-3, "after one update the policy has moved"
    assert not torch.equal(last.entropy, last.old_entropy) and batches[-1].ref_log_probs is not None
    assert [*last.groups.unique(return_counts=True)[1]] == [4, 4]
