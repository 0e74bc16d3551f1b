"""What SLURM says of itself: its partitions, and the most that a node of each has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from ..errors import UserError
from ..train.stopping import parse_time_left
from .finding import Finding


@dataclass
class Partition:
    """What sinfo says of one partition: the most that a node of it has."""

    default: bool = False
    minutes: float | None = None  # None: no limit
    memory_mb: int = 0
    cpus: int = 0
    gpus: int = 0
    gpu_models: set[str] = field(default_factory=set)


def ask(*command: str, timeout: float = 60) -> str:
    """What a command prints; UserError with its last word where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[0]} did not answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise UserError((done.stderr.strip().splitlines() or [f"{command[0]} failed with {done.returncode}"])[-1])
    return done.stdout


def partitions() -> Generator[Finding, None, dict[str, Partition]]:
    """All partitions by name."""
    try:
        answer = ask("sinfo", "--noheader", "--format=%P|%a|%l|%m|%c|%G")
    except UserError as error:
        yield Finding(
            "slurm", f"sinfo: {error}", "wrong", "Is this a login node, and the controller up (`scontrol ping`)?"
        )
        return {}
    found = parse_partitions(answer)
    if not found:
        yield Finding("slurm", "sinfo lists no partition that is up", "wrong", "Ask the cluster's administrators.")
        return {}
    yield Finding("slurm", f"sinfo answers, partitions: {', '.join(found)}")
    return found


def parse_partitions(answer: str) -> dict[str, Partition]:
    """From sinfo's `%P|%a|%l|%m|%c|%G`, a line per kind of node."""
    found: dict[str, Partition] = {}
    for line in answer.splitlines():
        name, up, limit, memory, cpus, gres = line.split("|", 5)
        if up != "up":
            continue
        each = found.setdefault(name.rstrip("*"), Partition())
        each.default |= name.endswith("*")
        seconds = parse_time_left(limit)
        each.minutes = None if seconds is None else seconds / 60
        each.memory_mb = max(each.memory_mb, int(re.sub(r"\D", "", memory) or 0))
        each.cpus = max(each.cpus, int(re.sub(r"\D", "", cpus) or 0))
        kinds = re.findall(r"\bgpu(?::([A-Za-z][^:,(]*))?:(\d+)", gres)
        each.gpus = max(each.gpus, sum(int(count) for _, count in kinds))
        each.gpu_models |= {model for model, _ in kinds if model}
    return found


def default_of(partitions: Mapping[str, Partition]) -> str | None:
    """The partition that a job goes to when it names none."""
    return next((name for name, each in partitions.items() if each.default), None)
