"""What a profile asks of a cluster, rule by rule, and whether a partition can give it."""

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
from .slurm import Partition, default_of, gpu_kinds

RULES = ("start_model", "train", "evaluate", "evaluate_part", "probe")  # those that are jobs
MEGABYTE = 10**6
FIRST_LOOK = 40  # seconds; the executor's default
UNREADABLE = (humanfriendly.InvalidSize, humanfriendly.InvalidTimespan)


@dataclass(frozen=True)
class ResourceRequest:
    """What the profile asks for a rule, or by default."""

    rule: str
    resources: Mapping[str, Any]

    @property
    def expressions(self) -> list[str]:
        """Keys whose values Snakemake works out for each job, so that nobody knows them before."""
        return [key for key, value in self.resources.items() if isinstance(value, str) and _is_expression(value)]

    @property
    def partitions(self) -> list[str]:
        """The partitions named, any of which will do; none: the default one."""
        return (self.text("slurm_partition") or "").split(",") if self.text("slurm_partition") else []

    @property
    def gpus(self) -> int:
        """GPUs on each node: of `gres: gpu:a100:2`, or this node's share of `gpu: 4`, which counts the whole job's."""
        if kinds := gpu_kinds(self.text("gres") or ""):
            return sum(count for _, count in kinds)
        whole_job = self.number("gpu") or int(bool(self.text("gpu_model")))
        return math.ceil(whole_job / (self.number("nodes") or 1))

    @property
    def place(self) -> tuple[str, ...]:
        """The options of srun that decide where a job on one such node goes."""
        options = {"partition": self.text("slurm_partition"), "account": self.text("slurm_account")}
        options |= {key: self.text(key) for key in ("qos", "constraint", "gres")}
        if self.gpus and not options["gres"]:
            model = self.text("gpu_model")
            options["gpus"] = f"{model}:{self.gpus}" if model else str(self.gpus)
        named = [f"--{option}={value}" for option, value in options.items() if value]
        return (*named, *shlex.split(self.text("slurm_extra") or ""))

    @property
    def size(self) -> tuple[str, ...]:
        """The options of srun that say how much of a node a job takes."""
        options = {"mem": self.number("mem_mb"), "cpus-per-task": self.number("cpus_per_task")}
        return tuple(f"--{option}={value}" for option, value in options.items() if value)

    def text(self, key: str) -> str | None:
        """A value as it is written; None where there is none, or an expression."""
        value = self.resources.get(key)
        return None if value in (None, "") or key in self.expressions else str(value)

    def number(self, key: str) -> int | None:
        """A count, megabytes of `mem_mb` or `mem`, minutes of `runtime`; None where there is none, or an expression."""
        value = self.text(key)
        if key == "mem_mb" and value is None and (size := self.text("mem")) is not None:
            return math.ceil(humanfriendly.parse_size(size) / MEGABYTE)
        if value is None or not value.isdecimal():
            return math.ceil(humanfriendly.parse_timespan(value) / 60) if value and key == "runtime" else None
        return int(value)


def _is_expression(value: str) -> bool:
    return re.search(r"\b(wildcards|attempt|input|threads)\b|\bif\b.*\belse\b", value) is not None


def read_profile(profile: Path) -> Generator[Finding, None, tuple[list[ResourceRequest], float]]:
    """(resource requests by rule, default-resources where a rule has none; seconds that SLURM must remember a finished
    job, three times the executor's first pause).
    """
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        shared = dict(content.get("default-resources") or {})
        rules = {rule: dict(own or {}) for rule, own in (content.get("set-resources") or {}).items()}
        requests = [ResourceRequest(rule, shared | own) for rule, own in rules.items()]
        if not set(RULES) <= set(rules):
            requests.insert(0, ResourceRequest("default-resources", shared))
        patience = 3.0 * float(content.get("slurm-init-seconds-before-status-checks", FIRST_LOOK))
        for request in requests:  # whether they can be read
            _ = request.place, request.size, request.number("runtime")
    except FileNotFoundError:
        yield Finding("profile", f"{profile}: no such file", "wrong", "Run this from the repository's root.")
        return [], 0.0
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError, *UNREADABLE) as error:
        reason = str(error).replace("\n", " ")
        yield Finding("profile", f"{profile}: {reason}", "wrong", "It is a mapping; `git diff` shows what was changed.")
        return [], 0.0
    yield Finding("profile", f"{profile}: {', '.join(rules) or 'no rule'} with resources of their own")
    for rule in rules:
        if rule not in RULES:
            change = f"Jobs are: {', '.join(RULES)}.{did_you_mean(rule, RULES)}"
            yield Finding("profile", f"{profile}: set-resources: {rule!r} is no rule that is a job", "wrong", change)
    for request in requests:
        if request.expressions:
            found = (
                f"{profile}, {request.rule}: {', '.join(request.expressions)}: worked out for each job, not looked at"
            )
            yield Finding("profile", found, "note")
    return requests, patience


def compare(request: ResourceRequest, partitions: Mapping[str, Partition], profile: Path) -> Iterator[Finding]:
    """Whether a partition can give what is asked of it. A job that asks for more waits for ever or is refused."""
    where = f"{profile}, {request.rule}"
    if "slurm_partition" in request.expressions:
        return
    names = request.partitions or [name for name in [default_of(partitions)] if name]
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
    there = partitions[name]
    if request.gpus > there.gpus:
        with_gpus = [n for n, p in partitions.items() if p.gpus >= request.gpus]
        better = f"Set slurm_partition to one that has them: {', '.join(with_gpus)}." if with_gpus else "Ask for fewer."
        found = f"{where}: asks for {request.gpus} GPU(s) per node, {name!r} has {there.gpus}"
        yield Finding("gpu", found, "wrong", f"{better} Without GPUs, remove the `gpu` lines.")
    model = request.text("gpu_model")
    if request.gpus and model and model not in there.gpu_models:
        change = (
            f"Set gpu_model to one of: {', '.join(sorted(there.gpu_models)) or 'none is told apart here; remove it'}."
        )
        yield Finding("gpu", f"{where}: {name!r} has no GPU of model {model!r}", "wrong", change)
    limits = (
        ("mem_mb", there.memory_mb, "MB of memory"),
        ("runtime", there.minutes, "minutes"),
        ("cpus_per_task", there.cpus, "CPUs"),
    )
    for key, most, unit in limits:
        asked = request.number(key)
        if asked and most and asked > most:
            found = f"{where}: asks for {asked} {unit}, {name!r} gives {most:.0f}"
            yield Finding("partition", found, "wrong", f"Set {key} to at most {most:.0f}.")
