"""What a profile asks of a cluster, rule by rule, and whether a partition can give it."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import did_you_mean
from .finding import Finding
from .slurm import Partition, default_of


@dataclass(frozen=True)
class Wish:
    """What the profile asks for a rule, or by default."""

    rule: str
    resources: Mapping[str, Any]

    @property
    def partition(self) -> str | None:
        """The partition named, if one is."""
        return self._text("slurm_partition")

    @property
    def gpus(self) -> int:
        """GPUs on each node: of `gres: gpu:a100:2`, or this node's share of `gpu: 4`, which counts the whole job's."""
        gres = re.search(r"\bgpu(?::[^:,]+)??(?::(\d+))?(?:,|$)", self._text("gres") or "")
        if gres:
            return int(gres[1] or 1)
        whole_job = int(self.resources.get("gpu") or bool(self.resources.get("gpu_model")))
        return math.ceil(whole_job / int(self.resources.get("nodes") or 1))

    @property
    def place(self) -> tuple[str, ...]:
        """The options of srun that decide where a job on one such node goes."""
        options = {"partition": self.partition, "account": self._text("slurm_account"), "qos": self._text("qos")}
        options |= {key: self._text(key) for key in ("constraint", "gres")}
        if self.gpus and not options["gres"]:
            model = self._text("gpu_model")
            options["gpus"] = f"{model}:{self.gpus}" if model else str(self.gpus)
        return tuple(f"--{option}={value}" for option, value in options.items() if value)

    def _text(self, key: str) -> str | None:
        value = self.resources.get(key)
        return None if value in (None, "") else str(value)


def read_profile(profile: Path) -> Generator[Finding, None, list[Wish]]:
    """The wishes of a profile: the default one, then rule by rule."""
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        shared = dict(content.get("default-resources") or {})
        rules = {rule: dict(own or {}) for rule, own in (content.get("set-resources") or {}).items()}
    except FileNotFoundError:
        yield Finding("profile", f"{profile}: no such file", "wrong", "Run this from the repository's root.")
        return []
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        reason = str(error).replace("\n", " ")
        yield Finding("profile", f"{profile}: {reason}", "wrong", "It is a mapping; `git diff` shows what was changed.")
        return []
    yield Finding("profile", f"{profile}: {', '.join(rules) or 'no rule'} with resources of their own")
    return [Wish("default-resources", shared), *(Wish(rule, shared | own) for rule, own in rules.items())]


def compare(wish: Wish, partitions: Mapping[str, Partition], profile: Path) -> Iterator[Finding]:
    """Whether a partition can give what is asked of it. A job that asks for more waits for ever or is refused."""
    name = wish.partition or default_of(partitions)
    where = f"{profile}, {wish.rule}"
    if name is None:
        change = f"Set slurm_partition under default-resources to one of: {', '.join(partitions)}."
        yield Finding("partition", f"{where}: none is named and the cluster has no default one", "wrong", change)
        return
    if name not in partitions:
        change = f"Set slurm_partition to what `sinfo -s` lists.{did_you_mean(name, partitions)}"
        yield Finding("partition", f"{where}: there is no partition {name!r}", "wrong", change)
        return
    there = partitions[name]
    if wish.gpus > there.gpus:
        with_gpus = [n for n, p in partitions.items() if p.gpus >= wish.gpus]
        better = f"Set slurm_partition to one that has them: {', '.join(with_gpus)}." if with_gpus else "Ask for fewer."
        found = f"{where}: {wish.gpus} GPUs a node asked, {name!r} has {there.gpus}"
        yield Finding("gpu", found, "wrong", f"{better} Without GPUs, remove the `gpu` lines.")
    model = wish.resources.get("gpu_model")
    if wish.gpus and model and model not in there.gpu_models:
        change = (
            f"Set gpu_model to one of: {', '.join(sorted(there.gpu_models)) or 'none is told apart here; remove it'}."
        )
        yield Finding("gpu", f"{where}: {name!r} has no GPU of model {model!r}", "wrong", change)
    limits = (("mem_mb", there.memory_mb, "MB of memory"), ("runtime", there.minutes, "minutes"))
    for key, most, unit in limits:
        asked = wish.resources.get(key)
        if isinstance(asked, int) and most and asked > most:
            found = f"{where}: {asked} {unit} asked, {name!r} gives {most:.0f}"
            yield Finding("partition", found, "wrong", f"Set {key} to at most {most:.0f}.")
