"""Errors of a device, as a user sees them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.errors import Stopped, UserError
from policygrain.model import device as module
from policygrain.model.device import GIB, device, device_errors, supports
from policygrain.study.schema import Training

CUDA_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.14 GiB of which 1.02 GiB is free."
)


def message(error: Exception, settings: Training, states: int | None = None) -> str:
    with pytest.raises((UserError, Stopped)) as raised, device_errors(settings, states):
        raise error
    return str(raised.value)


def test_too_little_memory_names_the_setting_and_a_value_that_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 80 GiB states take 20, and passes used 50 when 2.5 more were asked for: by that they fit, so it is half.
    monkeypatch.setattr(module, "_memory", lambda: (80 * GIB, 70 * GIB))
    settings = Training(micro_batch_tokens=16384, engine="vllm")
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), settings, 20 * GIB)
    assert "2.50 GiB more were requested, of 80.0 GiB in all" in said
    assert "optimizer states take 20.0 GiB" in said
    assert "training.micro_batch_tokens from 16384 to 8192 or less" in said
    assert all(key in said for key in ("activation_checkpointing", "kv_gib", "training.trainer: trl"))
    # 60 GiB of passes in 20 GiB that are left: a third, 5461, and the next power of two below.
    monkeypatch.setattr(module, "_memory", lambda: (80 * GIB, int(117.5 * GIB)))
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), settings, 60 * GIB)
    assert "to 4096 or less" in said
    # What is set already is not proposed.
    settings = Training(activation_checkpointing=True, trainer="trl", trl={"fsdp": True})
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), settings, 20 * GIB)
    assert not any(key in said for key in ("activation_checkpointing", "kv_gib", "training.trainer: trl"))
    # Memory of the host is not that of the GPU.
    said = message(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"), settings)
    assert "80.0 GiB" not in said


@pytest.mark.parametrize("states", [None, 76 * GIB], ids=["while it is loaded", "when it is trained"])
def test_a_policy_too_large_for_the_gpu_is_to_be_sharded(monkeypatch: pytest.MonkeyPatch, states: int | None) -> None:
    monkeypatch.setattr(module, "_memory", lambda: (80 * GIB, 79 * GIB))
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), Training(), states)
    assert "training.trainer: trl" in said and "model.lora" in said and "micro_batch_tokens" not in said
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), Training(trainer="trl", trl={"fsdp": True}), states)
    assert "training.trainer: trl" not in said and "model.lora" in said


LIMITED = """
import sys, torch
from policygrain.errors import UserError
from policygrain.model.device import device_errors
from policygrain.study.schema import Training
try:
    with device_errors(Training(micro_batch_tokens=3000), 2**30):
        torch.zeros(2**40)
except UserError as error:
    sys.exit(str(error))
"""


def test_memory_of_the_host_is_meant_as_well() -> None:
    """By the error that torch really raises where the kernel refuses."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, timeout=120)
    assert "4096.00 GiB more were requested" in done.stderr, done.stderr[-2000:]
    assert "training.micro_batch_tokens from 3000 to 1024 or less" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "Unable to determine the device handle: GPU is lost.",
    ],
)
def test_a_lost_gpu_is_a_reason_to_try_again_elsewhere(text: str) -> None:
    said = message(RuntimeError(text), Training())
    assert text.splitlines()[0] in said and "continues from its last checkpoint" in said and "--exclude=" in said


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "shapes do not match",
        "this type is not supported on this hardware",
    ],
)
def test_errors_of_the_program_stay_as_they_are(text: str) -> None:
    with pytest.raises(RuntimeError, match=text), device_errors(Training()):
        raise RuntimeError(text)


def other_torch(monkeypatch: pytest.MonkeyPatch, visible: bool) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible)
    module._check_cuda.cache_clear()
    monkeypatch.setattr(module, "_check_cuda", module._check_cuda.__wrapped__)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("The NVIDIA driver on your system is too old (found version 11040).", True),
        ("Unexpected error from cudaGetDeviceCount(): Error 803: system has unsupported display driver / cuda", True),
        ("Found no NVIDIA driver on your system.", False),
        ("No CUDA GPUs are available", False),
    ],
)
def test_a_driver_of_another_cuda_is_refused_and_no_gpu_is_not(
    monkeypatch: pytest.MonkeyPatch, text: str, refused: bool
) -> None:
    def init() -> None:
        raise RuntimeError(text)

    other_torch(monkeypatch, visible=False)
    monkeypatch.setattr(torch.cuda, "init", init)
    if not refused:
        assert device() == torch.device("cpu")
        return
    with pytest.raises(UserError, match=r"is built for CUDA 13\.0.*CUDA_VISIBLE_DEVICES="):
        device()


def test_a_gpu_that_torch_has_no_code_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other_torch(monkeypatch, visible=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90", "compute_90"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    with pytest.raises(UserError, match=r"for GPUs of sm_75, sm_80, sm_90, compute_90; Tesla V100 is sm_70"):
        device()


VERSIONS = st.tuples(st.integers(5, 12), st.integers(0, 9))


@given(VERSIONS, VERSIONS)
def test_which_code_runs_on_which_gpu(built: tuple[int, int], gpu: tuple[int, int]) -> None:
    number = f"{built[0]}{built[1]}"
    assert supports([f"compute_{number}"], gpu) == (built <= gpu)
    assert supports([f"sm_{number}a"], gpu) == (built == gpu)
    assert supports([f"sm_{number}f"], gpu) == supports([f"sm_{number}"], gpu)
    assert supports([f"sm_{number}"], gpu) == (built[0] == gpu[0] and built[1] <= gpu[1])
    assert supports(["sm_10", f"sm_{number}"], gpu) == supports([f"sm_{number}"], gpu)
    assert not supports([], gpu)
