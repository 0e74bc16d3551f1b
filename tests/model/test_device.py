"""Errors of a device, as a user sees them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from policygrain.errors import Stopped, UserError
from policygrain.model.device import device_errors, fits_beside_updates, no_updates_yet, updates_are_made
from policygrain.study.schema import Training

CUDA_MEMORY = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.14 GiB."


def message(error: Exception, settings: Training) -> str:
    with pytest.raises((UserError, Stopped)) as raised, device_errors(settings):
        raise error
    return str(raised.value)


def test_too_little_memory_names_the_settings_that_are_not_set_already():
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), Training(micro_batch_tokens=16384, engine="vllm"))
    assert "Tried to allocate 2.50 GiB" in said and "Lower training.micro_batch_tokens (16384)" in said
    keys = ("activation_checkpointing", "kv_gib", "trl with fsdp")
    assert all(key in said for key in (*keys, "model.lora"))
    settings = Training(activation_checkpointing=True, trainer="trl", trl={"fsdp": True})
    said = message(torch.OutOfMemoryError(CUDA_MEMORY), settings)
    assert "model.lora" in said and not any(key in said for key in keys)


def test_memory_of_the_host_is_meant_as_well():
    """By the error that torch really raises where the kernel refuses."""
    settings = Training(micro_batch_tokens=3000)
    with pytest.raises(UserError, match=r"Lower training\.micro_batch_tokens \(3000\)"), device_errors(settings):
        torch.zeros(2**48)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later", True),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", True),
        ("Unable to determine the device handle: GPU is lost.", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("shapes do not match", False),
        ("this type is not supported on this hardware", False),
    ],
)
def test_a_lost_gpu_is_a_reason_to_try_again_elsewhere_and_an_error_of_the_program_is_not(text, lost):
    if lost:
        said = message(RuntimeError(text), Training())
        assert text.splitlines()[0] in said and "continues from its last checkpoint" in said and "--exclude=" in said
    else:
        with pytest.raises(RuntimeError, match=text), device_errors(Training()):
            raise RuntimeError(text)


HOLDER = """
import os, sys
from pathlib import Path
from policygrain.model.device import claim_gpu
claim_gpu(Path(sys.argv[1]))
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A folder for locks, and a driver that lists two GPUs."""
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\nprintf 'GPU-a\\nGPU-b\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    for name in ("POLICYGRAIN_GPU", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def holder(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that holds a GPU until its input is closed."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(folder)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment})


def test_jobs_take_a_gpu_each_and_wait_while_there_is_none(two_gpus):
    with holder(two_gpus) as first, holder(two_gpus) as second:
        assert first.stdout is not None and second.stdout is not None
        assert sorted(process.stdout.readline() for process in (first, second)) == ["GPU-a\n", "GPU-b\n"]
        with holder(two_gpus, CUDA_VISIBLE_DEVICES="0,1") as third:
            assert third.stdout is not None and third.stderr is not None
            assert "waiting for a GPU: other jobs of yours use all 2." in third.stderr.readline()
            first.communicate()
            assert third.stdout.readline() in ("GPU-a\n", "GPU-b\n")
            third.communicate()
        second.communicate()


@pytest.mark.parametrize("given", [{"POLICYGRAIN_GPU": "GPU-a"}, {"LOCAL_RANK": "0"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_a_process_that_has_a_gpu_or_may_not_have_one_takes_none(given, two_gpus):
    with holder(two_gpus, **given) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == given.get("CUDA_VISIBLE_DEVICES", "None")
        process.communicate()
    assert not list(two_gpus.glob("*.lock"))


def test_what_may_stay_beside_updates_is_known_after_the_first(monkeypatch):
    """In GiB of a GPU of 100: updates held 60; what was given back since will be needed again."""
    held, free = 60, 40
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: held)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100))
    no_updates_yet()
    assert not fits_beside_updates(0)
    updates_are_made()
    assert fits_beside_updates(29) and not fits_beside_updates(30)
    held, free = 20, 80
    assert fits_beside_updates(29) and not fits_beside_updates(30)
    no_updates_yet()
    assert not fits_beside_updates(0)
