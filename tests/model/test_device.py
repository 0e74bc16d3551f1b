"""Errors of a device, as a user sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from policygrain.errors import Stopped, UserError
from policygrain.model.device import claimed_gpu, device_errors
from policygrain.study.schema import Training

CUDA_MEMORY = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.14 GiB."


def message(error: Exception, settings: Training) -> str:
    with pytest.raises((UserError, Stopped)) as raised, device_errors(settings):
        raise error
    return str(raised.value)


def test_too_little_memory_names_the_settings_that_are_not_set_already() -> None:
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), Training(micro_batch_tokens=16384, engine="vllm"))
    assert "Tried to allocate 2.50 GiB" in said and "Lower training.micro_batch_tokens (16384)" in said
    keys = ("activation_checkpointing", "kv_gib", "trl with fsdp")
    assert all(key in said for key in (*keys, "model.lora"))
    settings = Training(activation_checkpointing=True, trainer="trl", trl={"fsdp": True})
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), settings)
    assert "model.lora" in said and not any(key in said for key in keys)


LIMITED = """
import sys, torch
from policygrain.errors import UserError
from policygrain.model.device import claimed_gpu, device_errors
from policygrain.study.schema import Training
try:
    with device_errors(Training(micro_batch_tokens=3000)):
        torch.zeros(2**48)
except UserError as error:
    sys.exit(str(error))
"""


def test_memory_of_the_host_is_meant_as_well() -> None:
    """By the error that torch really raises where the kernel refuses."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, timeout=120)
    assert "Lower training.micro_batch_tokens (3000)" in done.stderr, done.stderr[-2000:]


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


HOLDER = """
import sys
from pathlib import Path
from policygrain.model.device import claimed_gpu
print(claimed_gpu(int(sys.argv[1]), Path(sys.argv[2])), flush=True)
sys.stdin.read()
"""


def holder(gpus: int, folder: Path) -> subprocess.Popen[str]:
    """A process that holds a GPU of ``gpus`` until its input is closed."""
    command = [sys.executable, "-c", HOLDER, str(gpus), str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


def test_jobs_take_a_gpu_each_and_wait_while_there_is_none(tmp_path: Path) -> None:
    with holder(2, tmp_path) as first, holder(2, tmp_path) as second:
        assert first.stdout is not None and second.stdout is not None
        assert sorted(process.stdout.readline() for process in (first, second)) == ["0\n", "1\n"]
        with holder(2, tmp_path) as third:
            assert third.stdout is not None and third.stderr is not None
            assert "waiting for a GPU" in third.stderr.readline()
            first.communicate()
            assert third.stdout.readline() in ("0\n", "1\n")
            third.communicate()
        second.communicate()


def test_a_process_shares_the_gpu_of_the_one_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYGRAIN_GPU", "1")
    claimed_gpu.cache_clear()
    assert claimed_gpu(2, tmp_path) == 1 and not list(tmp_path.iterdir())
    monkeypatch.setenv("LOCAL_RANK", "0")
    claimed_gpu.cache_clear()
    assert claimed_gpu(2, tmp_path) is None, "a rank has its own"
    claimed_gpu.cache_clear()
