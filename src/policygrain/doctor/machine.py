"""Checks of this machine: cores, memory, disk, torch, vLLM, and the study's needs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError
from ..files import check_free_space
from .finding import Finding
from .requirements import check_requirements, check_vllm, read_study

MEMORY_GB = 2  # of Snakemake, one trainer of a tiny model and its grader together


def check_machine(config: Path, results: Path) -> Iterator[Finding]:
    """Check this machine, and what the study in ``config`` needs; ``results`` is the folder of results."""
    yield Finding("cores", str(len(os.sched_getaffinity(0))))
    yield _memory()
    yield disk(results)
    yield _torch()
    study = yield from read_study(config)
    yield check_vllm(study)
    if study is not None:
        yield from check_requirements(study)


def _memory() -> Finding:
    try:
        match = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        match = None
    if match is None:
        return Finding("memory", "not known on this system", "note")
    available = int(match[1]) / 2**20
    if available < MEMORY_GB:
        return Finding(
            "memory", f"{available:.1f} GB free", "wrong", f"Free {MEMORY_GB} GB, or run with fewer --cores."
        )
    return Finding("memory", f"{available:.1f} GB free")


def disk(results: Path) -> Finding:
    """Whether ``results`` is writable and its disk has free space."""
    try:
        check_free_space(results)
    except UserError as error:
        return Finding("disk", str(error), "wrong", "Free some space there, or run in another folder (--directory).")
    return Finding("disk", f"{shutil.disk_usage(results).free / 2**30:.0f} GB free in {results.resolve()}")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", f"cannot be imported: {error}", "wrong", "Run `make setup`.")
    if torch.cuda.is_available():
        return Finding(
            "torch", f"{torch.__version__}, {torch.cuda.device_count()} GPU ({torch.cuda.get_device_name()})"
        )
    if shutil.which("nvidia-smi"):
        change = (
            "Run `make setup FLAVOUR=gpu` for the CUDA build; else check CUDA_VISIBLE_DEVICES and the driver's version."
        )
        return Finding("torch", f"{torch.__version__} sees no GPU, but there is a driver", "note", change)
    return Finding("torch", f"{torch.__version__}, no GPU")
