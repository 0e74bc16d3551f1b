"""Errors of a device as a user sees them; loading of models, and the precision of passes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import Gemma3Config, Qwen2Config

from policygrain.errors import UserError
from policygrain.model import device as module
from policygrain.model.device import gpu_errors, resolve_compute, set_compute_dtype
from policygrain.model.loading import context_length, load_model
from policygrain.model.scoring import score_tokens
from policygrain.model.vllm_engine import open_engine
from policygrain.objective import method
from policygrain.study.schema import Model, Training
from policygrain.train.policy import open_policy

from ..support.small import small_study
from ..support.training_batches import random_batch


@pytest.mark.parametrize(("text", "said"), yaml.safe_load(Path(__file__).with_name("errors.yaml").read_text()))
def test_too_little_memory_or_a_lost_gpu_says_what_to_do_and_other_errors_are_left(text, said):
    expected = pytest.raises(RuntimeError if said is None else UserError, match=re.escape(text))
    with expected as raised, gpu_errors(Training(micro_batch_tokens=16384)):
        raise RuntimeError(text)
    assert (said or text) in str(raised.value)


HOLDER = """
import os, sys
from pathlib import Path
from policygrain.model.device import claim_gpu
claim_gpu(Path(sys.argv[1]))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """Starts a process that holds a GPU, of two that a driver lists, until its input is closed."""
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\nprintf 'GPU-a\\nGPU-b\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    for name in ("POLICYGRAIN_GPU", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    command, pipe = [sys.executable, "-c", HOLDER, str(tmp_path)], subprocess.PIPE

    def start(**given: str) -> Any:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **given})

    return start


def test_jobs_take_a_gpu_each_and_wait_while_there_is_none(holder):
    with holder() as first, holder() as second:
        assert sorted(process.stdout.readline() for process in (first, second)) == ["GPU-a\n", "GPU-b\n"]
        with holder(CUDA_VISIBLE_DEVICES="0,1") as third:
            assert "waiting for a GPU: other jobs of yours use all 2." in third.stderr.readline()
            first.communicate()
            assert third.stdout.readline() in ("GPU-a\n", "GPU-b\n")
            third.communicate()
        second.communicate()


@pytest.mark.parametrize("given", [{"POLICYGRAIN_GPU": "GPU-a"}, {"LOCAL_RANK": "0"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_a_process_that_has_a_gpu_or_may_not_have_one_takes_none(given, holder, tmp_path):
    with holder(**given) as process:
        assert process.communicate()[0].strip() == given.get("CUDA_VISIBLE_DEVICES", "None")
    assert not list(tmp_path.glob("*.lock"))


def test_a_job_with_a_gpu_that_torch_cannot_use_does_not_compute_on_the_cpu(holder):
    with holder(SLURM_JOB_GPUS="0") as process:
        said = process.communicate()[1]
    assert re.search(r"UserError: there is a GPU, and torch .* cannot use it\. .*FLAVOUR=gpu", said)


def test_what_may_stay_beside_updates_is_known_after_the_first(monkeypatch):
    """In GiB of a GPU of 100: updates held 60; what was given back since will be needed again."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "_peak", [])
    for updates, held, free, room in ((0, 60, 40, -1), (1, 60, 40, 29), (1, 20, 80, 29)):
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda held=held: held)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 100))
        if updates:
            module.updates_are_made()
        assert module.fits_beside_updates(room) is (room > 0) and not module.fits_beside_updates(room + 1)


@pytest.mark.parametrize(("name", "fast"), [("amx_bf16", True), ("avx512_bf16", True), ("avx2", False)])
def test_a_processor_is_asked_for_bfloat16(name, fast, monkeypatch):
    monkeypatch.setattr(module, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True})
    assert resolve_compute("auto") == (torch.bfloat16 if fast else torch.float32)
    for dtype in ("float32", "bfloat16"):
        assert resolve_compute(dtype) == getattr(torch, dtype)
    # Passes are not more precise than the weights.
    assert resolve_compute("float32", "bfloat16") == torch.bfloat16


def test_passes_and_the_engine_are_in_that_precision_and_log_probabilities_in_float32(made):
    settings, rollouts = small_study(training={"compute": "bfloat16"}).training, random_batch().rollouts
    policy = open_policy(str(made[1]), Model(), method("grpo"), settings, 0)
    plain, model = load_model(str(made[1]))[0], policy.model
    set_compute_dtype(plain, torch.bfloat16)
    seen: list[torch.dtype] = []
    plain.base_model.layers[0].mlp.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    expected, scores = score_tokens(plain, rollouts, 1.0), score_tokens(model, rollouts, 1.0)
    assert seen == [torch.bfloat16] and scores.log_probs.dtype == expected.log_probs.dtype == torch.float32
    torch.testing.assert_close(scores.log_probs, expected.log_probs, atol=0.05, rtol=0)
    scores.log_probs.sum().backward()
    assert {x.dtype for p in model.parameters() for x in (p, p.grad)} == {torch.float32}
    engine: Any = open_engine("transformers", str(made[1]), model, policy.tokenizer, colocated=True)
    assert engine.model.dtype == torch.bfloat16
    set_compute_dtype(model, torch.float32)
    exact = score_tokens(model, rollouts, 1.0).log_probs
    assert 0 < (exact - scores.log_probs).abs().max() < 0.2
    engine.load_weights(model)
    assert engine.model is model, "no copy where the precision is that of the weights"


def test_a_gpu_without_bfloat16_is_one_message(monkeypatch):
    monkeypatch.setattr(module, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(UserError, match=r"training\.compute: Tesla T4 has no bfloat16\. Set it to float32"):
        resolve_compute("bfloat16")
    assert resolve_compute("auto") == torch.float32


def test_the_context_length_of_a_nested_text_configuration(tmp_path):
    Gemma3Config(text_config={"max_position_embeddings": 77}).save_pretrained(tmp_path / "a")
    Qwen2Config(max_position_embeddings=78).save_pretrained(tmp_path / "b")
    assert [context_length(str(tmp_path / name)) for name in "ab"] == [77, 78]
