"""SLURM's partitions and configuration, from sinfo and scontrol."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import UserError
from ..train.stopping import parse_time_left
from .finding import Finding


@dataclass
class Partition:
    """A partition, by sinfo; memory, CPUs and GPUs are the maximum over its nodes."""

    default: bool = False
    minutes: float | None = None  # None: no limit
    memory_mb: int = 0
    cpus: int = 0
    gpus: int = 0
    gpu_models: set[str] = field(default_factory=set)


def output_of(*command: str, timeout: float = 60, without: str | None = None) -> str:
    """Standard output of a command; UserError with the last line of its standard error if it fails or times out.

    Environment variables that begin with ``without`` are removed; ``timeout`` is in seconds.
    """
    environment = {key: value for key, value in os.environ.items() if not (without and key.startswith(without))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[0]} did not answer within {timeout:.0f} s") from error
    if done.returncode != 0:
        raise UserError((done.stderr.strip().splitlines() or [f"{command[0]} failed with {done.returncode}"])[-1])
    return done.stdout


def read_partitions() -> Generator[Finding, None, dict[str, Partition]]:
    """All partitions that are up, by name; none if sinfo fails. Yields findings."""
    try:
        answer = output_of("sinfo", "--noheader", "--format=%P|%a|%l|%m|%c|%G")
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
    if "SLURM_CONF" in os.environ:
        try:
            output_of("sinfo", "--noheader", without="SLURM_CONF")
        except UserError as error:
            change = "Snakemake removes SLURM_CONF inside jobs. Have the file moved to SLURM's default location."
            yield Finding("slurm", f"without SLURM_CONF, sinfo: {error}", "wrong", change)
    return found


def parse_partitions(answer: str) -> dict[str, Partition]:
    """Parse sinfo's format `%P|%a|%l|%m|%c|%G`, which has a line per kind of node."""
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
        kinds = gpu_kinds(gres)
        each.gpus = max(each.gpus, sum(count for _, count in kinds))
        each.gpu_models |= {model for model, _ in kinds if model}
    return found


def gpu_kinds(gres: str) -> list[tuple[str | None, int]]:
    """(model, count) of each kind of GPU in `gpu:a100:4(S:0-1),gpu:2080ti:2,nvme:1`, `gpu:2` or `gpu`."""
    kinds: list[tuple[str | None, int]] = []
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.split(":")
        if name == "gpu":
            count = int(rest.pop()) if rest and rest[-1].isdecimal() else 1
            kinds.append((rest[0] if rest else None, count))
    return kinds


def check_job_records(job_age: float) -> Iterator[Finding]:
    """Whether SLURM keeps records of finished jobs for ``job_age`` seconds, until Snakemake has asked for their status;
    and whether preempted jobs are cancelled instead of requeued.
    """
    try:
        answer = output_of("scontrol", "show", "config")
    except UserError as error:
        change = "If scontrol takes over 10 s, Snakemake asks sacct instead, which fails without accounting."
        yield Finding("slurm", f"scontrol show config: {error}", "note", change)
        return
    settings = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in answer.splitlines())}
    age = int(re.sub(r"\D", "", settings.get("MinJobAge", "")) or 300)
    if age < job_age:
        accounting = not settings.get("AccountingStorageType", "").endswith("none")
        found = f"finished jobs are forgotten after {age} s (MinJobAge), before Snakemake asks for their status"
        if accounting:
            yield Finding("slurm", f"{found}; sacct is asked instead", "note")
        else:
            change = f"There is no accounting to ask instead: have MinJobAge raised to {job_age:.0f}."
            yield Finding("slurm", found, "wrong", change)
    if "CANCEL" in settings.get("PreemptMode", "").upper():
        change = "Snakemake waits for ever for such a job: press Ctrl-C and run the same command again."
        yield Finding("slurm", "preempted jobs are cancelled here (PreemptMode)", "note", change)


def default_partition(partitions: Mapping[str, Partition]) -> str | None:
    """Name of the partition of jobs that name none; None if the cluster has no default."""
    return next((name for name, each in partitions.items() if each.default), None)
