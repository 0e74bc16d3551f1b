"""One optimizer step, split and ordered in every way; how a model is held and computed; adapters, prediction heads."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from policygrain.errors import Stopped, UserError
from policygrain.model.attention import Varlen
from policygrain.model.engine import Request, Rollout
from policygrain.model.loading import add_adapter, full_weights, load_model, merged
from policygrain.model.scoring import score_tokens
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import method
from policygrain.objective.batch import TokenBatch
from policygrain.study import Study
from policygrain.study.schema import Lora, Model
from policygrain.train import loop
from policygrain.train.batch import Batch, minibatches
from policygrain.train.policy import Policy, build_heads, on_device, open_policy, update
from policygrain.train.stopping import Stop

from ..support.batches import METHODS
from ..support.small import assert_same_end, small_study, study_of, train_small, trained
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
    """In one pass; a row at a time, in some micro-batches, and shuffled."""
    batch = random_batch()
    shuffled = batch.rows(torch.tensor([7, 2, 9, 0, 5, 1, 8, 3, 6, 4]))
    whole, metrics = gradient_of(made[1], name, batch, budget=10**6)
    assert whole.norm() > 1e-6
    for other, budget in ((batch, 1), (batch, 60), (shuffled, 60)):
        # float32 log-softmax inside a float64 model bounds the agreement.
        gradient, same = gradient_of(made[1], name, other, budget)
        assert torch.allclose(gradient, whole, rtol=1e-4, atol=1e-6 * whole.norm().item())
        assert {key: same[key] for key in metrics} == pytest.approx(metrics, rel=1e-4, abs=1e-6)


def test_a_group_that_minibatches_divide_is_whole(made):
    """GEPO's ratio reads all of it: two halves, means over 4 and 5 responses, have the gradient of the batch, of 9."""
    batch = random_batch()
    whole, _ = gradient_of(made[1], "gepo", batch, budget=10**6)
    one, two = (gradient_of(made[1], "gepo", batch.rows(rows), 10**6)[0] for rows in torch.arange(10).view(5, 2).T)
    assert torch.allclose((4 * one + 5 * two) / 9, whole, rtol=1e-4, atol=1e-6 * whole.norm().item())


@pytest.mark.parametrize("name", ["grpo", "dapo", "tepo", "mpo", "gspo"])
def test_a_pass_is_on_the_models_device_and_reads_no_number_before_its_end(name, made, monkeypatch):
    """On the meta device, where a tensor of the host is refused, and the value of a tensor too: nothing waits there."""

    def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return query + 0 * (key.sum() + value.sum())

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash)
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


def test_a_function_reads_the_step_under_the_current_policy_if_it_declares_that(made, tmp_path, monkeypatch):
    (tmp_path / "watching_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    bonus = {"name": "entropy_bonus", "coefficient": 1.0}  # it has a gradient whatever the rewards are
    own = {"clip": "watching_parts:watched", "penalties": [bonus]}
    study = study_of("grpo", own, steps=1, learning_rate=0.01)
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


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_model(str(run))[0].state_dict()


HELD = [({"activation_checkpointing": True}, 1e-6), ({"compute": "bfloat16"}, 0.05)]


@pytest.mark.parametrize(("training", "tolerance"), HELD, ids=["recomputed", "bfloat16"])
def test_how_a_model_is_held_does_not_change_an_update(training, tolerance, made):
    """The same batch, so that no sampled token depends on the processor."""

    def updated(**settings: object) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        chosen, small = method("grpo"), small_study(training=settings).training
        policy = open_policy(str(made[1]), Model(), chosen, small, 0)
        return update(policy, random_batch(), chosen, small), dict(full_weights(policy.model))

    (plain, before), (metrics, after) = updated(), updated(**training)
    for name in ("loss", "gradient_norm", "entropy", "ratio_max"):
        assert metrics[name] == pytest.approx(plain[name], rel=tolerance, abs=tolerance), name
    assert set(after) == set(before) and all(w.dtype == torch.float32 for w in after.values())
    start = weights(made[1])
    moved, expected = (torch.cat([(w[k] - start[k]).flatten() for k in before]) for w in (after, before))
    assert torch.cosine_similarity(moved, expected, dim=0) > 1 - max(tolerance, 1e-5) and expected.norm() > 0


def lora(**training: object) -> Study:
    return small_study(model={"lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}}, training=training)


def test_an_adapter_learns_resumes_and_is_saved_as_a_plain_model(made, tmp_path):
    study, run = lora(learning_rate=5e-2), tmp_path / "run"
    rows = trained(study, run, made)[:-1]
    assert rows[0]["kl_initial"] < 1e-6, "the reference is not the start policy"
    assert max(row["kl_initial"] for row in rows) > 1e-5, "the reference changes"
    assert max(row["mismatch_max"] for row in rows) < 1e-4, "the engine samples without the adapter"
    start, end = weights(made[1]), weights(run / "model")
    assert set(start) == set(end)
    for name in start:
        changed = (end[name] - start[name]).double()
        adapted = any(target in name for target in ("q_proj.weight", "down_proj.weight"))
        assert (torch.linalg.matrix_rank(changed, atol=1e-6) in range(1, 5)) if adapted else not changed.any(), name
    with pytest.raises(Stopped):
        train_small(study, tmp_path / "stopped", *made, stop=Stop(deadline=0.0))
    assert_same_end(train_small(study, tmp_path / "stopped", *made), run)


def test_an_adapter_that_cannot_be_made_is_one_message(made, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"model\.lora\.targets: .*queries"):
        train_small(small_study(model={"lora": {"targets": ["queries"]}}), tmp_path / "run", *made)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else found(name, *rest))
    with pytest.raises(UserError, match=r"model\.lora: the package peft is missing"):
        train_small(lora(), tmp_path / "run", *made)


def test_the_full_weights_of_a_model_that_fsdp_shards_are_those_it_was_loaded_from(made):
    """As TRL holds it with `fsdp`; the engine and the final model get these weights."""
    model, plain, ids = *(load_model(str(made[1]))[0] for _ in range(2)), torch.arange(5, 11).unsqueeze(0)
    expected = plain.state_dict()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        assert any(isinstance(p, DTensor) for p in model.parameters())
        given = dict(full_weights(model))
        assert set(given) == set(expected) and all(torch.equal(given[k], expected[k]) for k in expected)
        whole = merged(model)
        assert whole is not None and type(whole) is type(plain)
        torch.testing.assert_close(whole(ids).logits, plain(ids).logits)
        assert merged(model, keep=False) is None
    finally:
        dist.destroy_process_group()


def test_the_initial_policy_is_put_away_after_an_error(made):
    """The reference policy goes back to host memory, or adapters are enabled again."""
    model = load_model(str(made[1]))[0]
    tensors = [*model.parameters(), *model.buffers()]
    on_host = [tensor.data_ptr() for tensor in tensors]
    with pytest.raises(ZeroDivisionError), on_device(model, model) as start:
        for tensor in tensors:  # as if the compute device had a memory of its own
            tensor.data = tensor.data.clone()
        assert start is model and [tensor.data_ptr() for tensor in tensors] != on_host
        raise ZeroDivisionError
    assert [tensor.data_ptr() for tensor in tensors] == on_host
    add_adapter(model, Lora(targets=["q_proj"]), seed=0)
    layers = [module for module in model.modules() if hasattr(module, "disable_adapters")]
    with pytest.raises(ZeroDivisionError), on_device(None, model):
        assert layers and any(layer.disable_adapters is True for layer in layers)
        raise ZeroDivisionError
    assert not any(layer.disable_adapters is True for layer in layers)


def heads_study(warmup_batches: int, **mtp: Any) -> Study:
    return study_of("mpo_heads", {"mtp_heads": {"warmup_batches": warmup_batches, **mtp}}, steps=2)


def test_only_a_ratio_that_looks_ahead_has_heads_and_their_weights_follow_the_seed(made):
    (model, _), before = load_model(str(made[1])), torch.get_rng_state()
    assert build_heads(model, method("grpo"), seed=0) is None
    built: Any = [build_heads(model, method("mpo_heads"), seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before), "the random state of the run is left as it is"
    one, same, other = (torch.cat([p.flatten() for p in heads.parameters()]) for heads in built)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_the_warm_up_lowers_the_heads_loss_with_samples_of_its_own(made, tmp_path, monkeypatch):
    """Training begins with the same prompts, seeds and policy as without a warm-up."""
    generate, seeds = TorchEngine.generate, []

    def noted(self: TorchEngine, requests: list[Request]) -> list[Rollout]:
        if requests[0].log_probs:  # validation asks for none
            seeds.append({request.seed for request in requests})
        return generate(self, requests)

    without = trained(heads_study(0), tmp_path / "without", made)
    monkeypatch.setattr(TorchEngine, "generate", noted)
    rows = trained(heads_study(12, learning_rate=1e-2), tmp_path / "run", made)
    # Twelve batches of the warm-up; training samples more prompts where groups of equal rewards were dropped.
    assert [len(batch) for batch in seeds[:12]] == [16] * 12 and len(seeds) >= 12 + 2
    assert len(set().union(*seeds)) == sum(len(batch) for batch in seeds)
    for key in ("sampled_accuracy", "response_length_mean", "entropy_old", "validation_accuracy", "total_tokens"):
        assert rows[0][key] == without[0][key]
    assert 0 < rows[0]["future_loss"] < without[0]["future_loss"] and rows[1]["future_loss"] > 0


def test_a_resumed_run_does_not_warm_up_again(made, tmp_path, monkeypatch):
    study = heads_study(2)
    whole = train_small(study, tmp_path / "whole", *made)
    with pytest.raises(Stopped):
        train_small(study, tmp_path / "run", *made, stop=Stop(deadline=0.0))
    monkeypatch.setattr(loop, "warm_up_heads", None)
    assert_same_end(train_small(study, tmp_path / "run", *made), whole)
