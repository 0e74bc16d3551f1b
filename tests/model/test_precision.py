"""Loading of models, and the precision of passes: asked of the processor, applied to the layers and the engine."""

from typing import Any

import pytest
import torch
from transformers import Gemma3Config, Qwen2Config

from policygrain.errors import UserError
from policygrain.model import precision
from policygrain.model.loading import context_length, fuse_layers, load_model
from policygrain.model.logprobs import score_tokens
from policygrain.model.open_engine import open_engine
from policygrain.model.precision import compute_dtype, has_fast_bfloat16, resolve_compute, set_compute_dtype
from policygrain.objective import method
from policygrain.study.schema import Model
from policygrain.train.policy import open_policy

from ..support.small import small_study
from ..support.training_batches import random_batch


@pytest.mark.parametrize(("name", "fast"), [("amx_bf16", True), ("avx512_bf16", True), ("avx2", False)])
def test_a_processor_is_asked_for_bfloat16(name, fast, monkeypatch):
    monkeypatch.setattr(precision, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True})
    assert has_fast_bfloat16() is fast
    assert resolve_compute("auto") == (torch.bfloat16 if fast else torch.float32)
    for dtype in ("float32", "bfloat16", "float16"):
        assert resolve_compute(dtype) == getattr(torch, dtype)
    # Passes are not more precise than the weights.
    assert resolve_compute("float32", "bfloat16") == torch.bfloat16
    assert resolve_compute("float16", "float32") == resolve_compute("float16", "bfloat16") == torch.float16


def test_passes_are_in_that_precision_and_log_probabilities_in_float32(made):
    settings = small_study(training={"compute": "bfloat16"}).training
    policy = open_policy(str(made[1]), Model(), method("grpo"), settings, 0)
    seen: list[torch.dtype] = []
    model: Any = policy.model
    model.base_model.layers[0].mlp.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    sequences = random_batch().rows(torch.arange(10)).sequences
    scores = score_tokens(policy.model, sequences, 1.0)
    assert seen == [torch.bfloat16] and scores.log_probs.dtype == torch.float32
    scores.log_probs.sum().backward()
    assert all(
        p.dtype == torch.float32 and p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters()
    )
    set_compute_dtype(policy.model, torch.float32)
    exact = score_tokens(policy.model, sequences, 1.0).log_probs
    assert seen[-1] == torch.float32 and 0 < (exact - scores.log_probs).abs().max() < 0.2


def test_the_engine_of_training_has_a_copy_in_that_precision(made):
    for compute, copied in (("float32", False), ("bfloat16", True)):
        settings = small_study(training={"compute": compute}).training
        policy = open_policy(str(made[1]), Model(), method("grpo"), settings, 0)
        engine: Any = open_engine("transformers", str(made[1]), policy.model, policy.tokenizer, colocated=True)
        assert engine.model.dtype == compute_dtype(policy.model) == getattr(torch, compute)
        assert (engine.model is not policy.model) is copied and policy.model.dtype == torch.float32


def test_fused_norms_are_those_of_transformers(made):
    """With gradients, to the float32 in which transformers computes them; they are used on a GPU."""
    sequences, results = random_batch().sequences, []
    for fused in (False, True):
        model, _ = load_model(str(made[1]), dtype="float64")
        before = type(model.model.norm)
        if fused:
            fuse_layers(model, by_liger=False)
        assert (type(model.model.norm) is not before) is fused
        scores = score_tokens(model, sequences, 1.0)
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
        results.append([scores.log_probs.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_a_gpu_without_bfloat16_is_one_message(monkeypatch):
    monkeypatch.setattr(precision, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(UserError, match=r"training\.compute: Tesla T4 has no bfloat16\. Set it to float16 or float32"):
        resolve_compute("bfloat16")
    assert resolve_compute("auto") == torch.float32 and resolve_compute("float16") == torch.float16


def test_the_context_length_of_a_nested_text_configuration(tmp_path):
    Gemma3Config(text_config={"max_position_embeddings": 77}).save_pretrained(tmp_path / "a")
    Qwen2Config(max_position_embeddings=78).save_pretrained(tmp_path / "b")
    assert [context_length(str(tmp_path / name)) for name in "ab"] == [77, 78]
