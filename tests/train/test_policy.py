"""How a model is held and computed: in half precision, with recomputed activations, with an adapter."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from policygrain.errors import Stopped, UserError
from policygrain.model.loading import load_model
from policygrain.model.weights import add_adapter, full_weights, merged
from policygrain.objective import method
from policygrain.paths import RunFolder
from policygrain.results import run_metrics
from policygrain.study import Study
from policygrain.study.schema import Lora, Model
from policygrain.train.policy import on_device, open_policy
from policygrain.train.stopping import Stop
from policygrain.train.update import update

from ..support.device import PLACE
from ..support.small import assert_same_end, small_study, train_small
from ..support.training_batches import random_batch

NO_PEFT = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_model(str(run))[0].state_dict()


@pytest.mark.parametrize(
    ("training", "tolerance"),
    [
        ({"activation_checkpointing": True}, 1e-6),
        ({"compute": "float16"}, 0.01),
        ({"compute": "bfloat16"}, 0.05),
    ],
    ids=["recomputed", "float16", "bfloat16"],
)
def test_how_a_model_is_held_does_not_change_an_update(
    training: dict, tolerance: float, made: tuple[Path, Path]
) -> None:
    """The same batch, so that no sampled token depends on the processor."""

    def updated(**settings: object) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        chosen, small = method("grpo"), small_study(training=settings).training
        policy = open_policy(str(made[1]), Model(), chosen, small, 0)
        metrics = update(policy, random_batch(), chosen, small)
        return metrics, {name: weight.clone() for name, weight in full_weights(policy.model)}

    (plain, before), (metrics, after) = updated(), updated(**training)
    for name in ("loss", "gradient_norm", "entropy", "ratio_max"):
        assert metrics[name] == pytest.approx(plain[name], rel=tolerance, abs=tolerance), name
    assert set(after) == set(before) and all(w.dtype == torch.float32 for w in after.values())
    start = weights(made[1])
    moved, expected = (torch.cat([(w[k] - start[k]).flatten() for k in before]) for w in (after, before))
    assert torch.cosine_similarity(moved, expected, dim=0) > 1 - max(tolerance, 1e-5) and expected.norm() > 0


def test_a_float16_gradient_that_overflows_makes_no_step(made: tuple[Path, Path]) -> None:
    """Losses are scaled by too much at first; the scaler finds a scale that is not, and learning goes on."""
    settings = small_study(training={"compute": "float16"}).training
    chosen = method("grpo")
    policy = open_policy(str(made[1]), Model(), chosen, settings, 0)
    model, policy.scaler = policy.model, torch.amp.GradScaler(PLACE.type, init_scale=2.0**40, backoff_factor=2.0**-12)
    norms, moved = [], []
    for _ in range(4):
        before = dict(full_weights(model))
        before = {name: weight.clone() for name, weight in before.items()}
        norms.append(update(policy, random_batch(), chosen, settings)["gradient_norm"])
        moved.append(any(not torch.equal(weight, before[name]) for name, weight in full_weights(model)))
    finite = [math.isfinite(norm) for norm in norms]
    assert finite == moved and finite[0] is False and finite[-1] is True
    policy.scaler = torch.amp.GradScaler(PLACE.type, init_scale=1.0)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(UserError, match="gradient is not finite"):
        update(policy, random_batch(), chosen, settings)


def lora(**training: object) -> Study:
    return small_study(model={"lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}}, training=training)


@NO_PEFT
def test_an_adapter_learns_resumes_and_is_saved_as_a_plain_model(made: tuple[Path, Path], tmp_path: Path) -> None:
    study = lora(learning_rate=5e-2)
    run = train_small(study, tmp_path / "run", *made)
    rows = run_metrics(RunFolder(run))[:-1]
    assert rows[0]["kl_initial"] < 1e-6, "the reference is not the start policy"
    assert max(row["kl_initial"] for row in rows) > 1e-5, "the reference changes"
    assert max(row["mismatch_max"] for row in rows) < 1e-4, "the engine samples without the adapter"
    start, end = weights(made[1]), weights(run / "model")
    assert set(start) == set(end)
    for name in start:
        changed = (end[name] - start[name]).double()
        adapted = any(target in name for target in ("q_proj.weight", "down_proj.weight"))
        assert (torch.linalg.matrix_rank(changed, atol=1e-6) in range(1, 5)) if adapted else not changed.any(), name
    stopped = tmp_path / "stopped"
    with pytest.raises(Stopped):
        train_small(study, stopped, *made, stop=Stop(deadline=0.0))
    assert_same_end(train_small(study, stopped, *made), run)


@NO_PEFT
def test_targets_that_no_module_has_are_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    study = small_study(model={"lora": {"targets": ["queries"]}})
    with pytest.raises(UserError, match=r"model\.lora\.targets: .*queries"):
        train_small(study, tmp_path / "run", *made)


def test_an_adapter_without_peft_is_one_message(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else found(name, *rest))
    with pytest.raises(UserError, match=r"model\.lora: the package peft is missing"):
        train_small(lora(), tmp_path / "run", *made)


def test_the_full_weights_of_a_model_that_fsdp_shards_are_those_it_was_loaded_from(made: tuple[Path, Path]) -> None:
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


def test_weights_are_back_in_host_memory_after_an_error(made: tuple[Path, Path]) -> None:
    reference = load_model(str(made[1]))[0]
    tensors = [*reference.parameters(), *reference.buffers()]
    on_host = [tensor.data_ptr() for tensor in tensors]
    with pytest.raises(ZeroDivisionError), on_device(reference, reference) as start:
        for tensor in tensors:  # as if the compute device had a memory of its own
            tensor.data = tensor.data.clone()
        assert start is reference and [tensor.data_ptr() for tensor in tensors] != on_host
        raise ZeroDivisionError
    assert [tensor.data_ptr() for tensor in tensors] == on_host


@NO_PEFT
def test_adapters_are_enabled_again_after_an_error(made: tuple[Path, Path]) -> None:
    model = load_model(str(made[1]))[0]
    add_adapter(model, Lora(targets=["q_proj"]), seed=0)
    layers = [module for module in model.modules() if hasattr(module, "disable_adapters")]
    with pytest.raises(ZeroDivisionError), on_device(None, model):
        assert layers and any(layer.disable_adapters is True for layer in layers)
        raise ZeroDivisionError
    assert not any(layer.disable_adapters is True for layer in layers)
