"""Resource requests of a Snakemake profile, by rule, and whether a partition can satisfy them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import humanfriendly
import yaml

from ..errors import did_you_mean
from .finding import Finding
from .slurm import Partition, default_partition, gpu_kinds

RULES = ("start_model", "train", "evaluate", "evaluate_part", "estimators", "rounds")  # rules that run as cluster jobs
MEGABYTE = 10**6
FIRST_STATUS_CHECK = 40  # seconds after submission; the executor's default
UNREADABLE = (humanfriendly.InvalidSize, humanfriendly.InvalidTimespan)


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that the profile requests for a rule, or by default."""

    rule: str
    resources: Mapping[str, Any]

    @property
    def expressions(self) -> list[str]:
        """Keys whose values are expressions, which Snakemake evaluates for each job."""
        return [key for key, value in self.resources.items() if isinstance(value, str) and _is_expression(value)]

    @property
    def partitions(self) -> list[str]:
        """The partitions named, of which SLURM takes any; empty: the default partition."""
        return (self.text("slurm_partition") or "").split(",") if self.text("slurm_partition") else []

    @property
    def gpus(self) -> int:
        """GPUs per node: of `gres: gpu:a100:2`, or the node's share of `gpu: 4`, which counts all GPUs of the job."""
        if kinds := gpu_kinds(self.text("gres") or ""):
            return sum(count for _, count in kinds)
        per_job = self.number("gpu") or int(bool(self.text("gpu_model")))
        return math.ceil(per_job / (self.number("nodes") or 1))

    @property
    def place(self) -> tuple[str, ...]:
        """Options of srun that decide on which nodes a job with these resources can run."""
        options = {"partition": self.text("slurm_partition"), "account": self.text("slurm_account")}
        options |= {key: self.text(key) for key in ("qos", "constraint", "gres")}
        if self.gpus and not options["gres"]:
            model = self.text("gpu_model")
            options["gpus"] = f"{model}:{self.gpus}" if model else str(self.gpus)
        named = [f"--{option}={value}" for option, value in options.items() if value]
        return (*named, *shlex.split(self.text("slurm_extra") or ""))

    @property
    def size(self) -> tuple[str, ...]:
        """Options of srun for the memory and CPUs of a job."""
        options = {"mem": self.number("mem_mb"), "cpus-per-task": self.number("cpus_per_task")}
        return tuple(f"--{option}={value}" for option, value in options.items() if value)

    def text(self, key: str) -> str | None:
        """The value of ``key`` as text; None if it is missing or an expression."""
        value = self.resources.get(key)
        return None if value in (None, "") or key in self.expressions else str(value)

    def number(self, key: str) -> int | None:
        """The value of ``key`` as a count, in megabytes (`mem_mb`, `mem`) or minutes (`runtime`); None as in `text`."""
        value = self.text(key)
        if key == "mem_mb" and value is None and (size := self.text("mem")) is not None:
            return math.ceil(humanfriendly.parse_size(size) / MEGABYTE)
        if value is None or not value.isdecimal():
            return math.ceil(humanfriendly.parse_timespan(value) / 60) if value and key == "runtime" else None
        return int(value)


def _is_expression(value: str) -> bool:
    return re.search(r"\b(wildcards|attempt|input|threads)\b|\bif\b.*\belse\b", value) is not None


def read_profile(profile: Path) -> Generator[Finding, None, tuple[list[ResourceRequest], float]]:
    """Resource requests of the profile, and the seconds for which SLURM must keep records of finished jobs.

    There is one request per rule with resources of its own, and one for `default-resources` if a rule has none. The
    seconds are three times the executor's wait before its first status check. Yields findings.
    """
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        shared = dict(content.get("default-resources") or {})
        rules = {rule: dict(own or {}) for rule, own in (content.get("set-resources") or {}).items()}
        requests = [ResourceRequest(rule, shared | own) for rule, own in rules.items()]
        if not set(RULES) <= set(rules):
            requests.insert(0, ResourceRequest("default-resources", shared))
        job_age = 3.0 * float(content.get("slurm-init-seconds-before-status-checks", FIRST_STATUS_CHECK))
        for request in requests:  # raises if a value cannot be parsed
            _ = request.place, request.size, request.number("runtime")
    except FileNotFoundError:
        yield Finding("profile", f"{profile}: no such file", "wrong", "Run this from the repository's root.")
        return [], 0.0
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError, *UNREADABLE) as error:
        reason = str(error).replace("\n", " ")
        yield Finding("profile", f"{profile}: {reason}", "wrong", "It is a mapping; `git diff` shows what was changed.")
        return [], 0.0
    yield Finding("profile", f"{profile}: {', '.join(rules) or 'no rule'} with resources of their own")
    for rule in rules:
        if rule not in RULES:
            change = f"The rules that are jobs: {', '.join(RULES)}.{did_you_mean(rule, RULES)}"
            yield Finding(
                "profile", f"{profile}: set-resources: {rule!r} is no rule that runs as a job", "wrong", change
            )
    for request in requests:
        if request.expressions:
            found = f"{profile}, {request.rule}: {', '.join(request.expressions)}: evaluated for each job, not checked"
            yield Finding("profile", found, "note")
    return requests, job_age


def compare(request: ResourceRequest, partitions: Mapping[str, Partition], profile: Path) -> Iterator[Finding]:
    """Whether the partitions can satisfy ``request``: jobs that request more are refused or stay pending for ever."""
    where = f"{profile}, {request.rule}"
    if "slurm_partition" in request.expressions:
        return
    names = request.partitions or [name for name in [default_partition(partitions)] if name]
    if not names:
        change = f"Set slurm_partition under default-resources to one of: {', '.join(partitions)}."
        yield Finding("partition", f"{where}: none is named and the cluster has no default one", "wrong", change)
    for name in names:
        if name in partitions:
            yield from _compare_one(request, name, partitions, where)
        else:
            change = f"Set slurm_partition to what `sinfo -s` lists.{did_you_mean(name, partitions)}"
            yield Finding("partition", f"{where}: there is no partition {name!r}", "wrong", change)


def _compare_one(
    request: ResourceRequest, name: str, partitions: Mapping[str, Partition], where: str
) -> Iterator[Finding]:
    partition = partitions[name]
    if request.gpus > partition.gpus:
        with_gpus = [n for n, p in partitions.items() if p.gpus >= request.gpus]
        better = f"Set slurm_partition to one that has them: {', '.join(with_gpus)}." if with_gpus else "Ask for fewer."
        found = f"{where}: asks for {request.gpus} GPU(s) per node, {name!r} has {partition.gpus}"
        yield Finding("gpu", found, "wrong", f"{better} Without GPUs, remove the `gpu` lines.")
    model = request.text("gpu_model")
    if request.gpus and model and model not in partition.gpu_models:
        models = ", ".join(sorted(partition.gpu_models))
        change = f"Set gpu_model to one of: {models}." if models else "Remove gpu_model: SLURM lists no models here."
        yield Finding("gpu", f"{where}: {name!r} has no GPU of model {model!r}", "wrong", change)
    limits = (
        ("mem_mb", partition.memory_mb, "MB of memory"),
        ("runtime", partition.minutes, "minutes"),
        ("cpus_per_task", partition.cpus, "CPUs"),
    )
    for key, most, unit in limits:
        asked = request.number(key)
        if asked and most and asked > most:
            found = f"{where}: asks for {asked} {unit}, {name!r} gives {most:.0f}"
            yield Finding("partition", found, "wrong", f"Set {key} to at most {most:.0f}.")
