"""How a model is held and computed: in half precision, with recomputed activations, an adapter or prediction heads."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from policygrain.errors import Stopped, UserError
from policygrain.model.engine import Request, Rollout
from policygrain.model.loading import add_adapter, full_weights, load_model, merged
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import method
from policygrain.study import Study
from policygrain.study.schema import Lora, Model
from policygrain.train import loop
from policygrain.train.policy import build_heads, on_device, open_policy, update
from policygrain.train.stopping import Stop

from ..support.small import assert_same_end, small_study, train_small, trained
from ..support.training_batches import random_batch


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_model(str(run))[0].state_dict()


@pytest.mark.parametrize(
    ("training", "tolerance"),
    [({"activation_checkpointing": True}, 1e-6), ({"compute": "bfloat16"}, 0.05)],
    ids=["recomputed", "bfloat16"],
)
def test_how_a_model_is_held_does_not_change_an_update(training, tolerance, made):
    """The same batch, so that no sampled token depends on the processor."""

    def updated(**settings: object) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        chosen, small = method("grpo"), small_study(training=settings).training
        policy = open_policy(str(made[1]), Model(), chosen, small, 0)
        return update(policy, random_batch(), chosen, small), copied(policy.model)

    (plain, before), (metrics, after) = updated(), updated(**training)
    for name in ("loss", "gradient_norm", "entropy", "ratio_max"):
        assert metrics[name] == pytest.approx(plain[name], rel=tolerance, abs=tolerance), name
    assert set(after) == set(before) and all(w.dtype == torch.float32 for w in after.values())
    start = weights(made[1])
    moved, expected = (torch.cat([(w[k] - start[k]).flatten() for k in before]) for w in (after, before))
    assert torch.cosine_similarity(moved, expected, dim=0) > 1 - max(tolerance, 1e-5) and expected.norm() > 0


def copied(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in full_weights(model)}


def lora(**training: object) -> Study:
    return small_study(model={"lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}}, training=training)


def test_an_adapter_learns_resumes_and_is_saved_as_a_plain_model(made, tmp_path):
    study = lora(learning_rate=5e-2)
    run = tmp_path / "run"
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
    model, expected = load_model(str(made[1]))[0], weights(made[1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        assert any(isinstance(p, DTensor) for p in model.parameters())
        given = dict(full_weights(model))
        assert set(given) == set(expected) and all(torch.equal(given[k], expected[k]) for k in expected)
        plain, ids = merged(model), torch.arange(5, 11).unsqueeze(0)
        assert plain is not None and type(plain) is type(load_model(str(made[1]))[0])
        torch.testing.assert_close(plain(ids).logits, load_model(str(made[1]))[0](ids).logits)
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


# ---- prediction heads ----


def heads_study(warmup_batches: int, **mtp: Any) -> Any:
    return small_study(
        training={"steps": 2},
        methods={"own": {"base": "mpo_heads", "mtp_heads": {"warmup_batches": warmup_batches, **mtp}}},
        experiments={"headline": {"methods": ["own"]}},
    )


def test_only_a_ratio_that_looks_ahead_has_heads_and_their_weights_follow_the_seed(made):
    model, _ = load_model(str(made[1]))
    assert build_heads(model, method("grpo"), seed=0) is None
    before = torch.get_rng_state()
    one, same, other = (build_heads(model, method("mpo_heads"), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before), "the random state of the run is left as it is"
    weights = [torch.cat([p.flatten() for p in heads.parameters()]) for heads in (one, same, other) if heads]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


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
