"""A cluster: what the profile asks of it, whether jobs can work there, what the study needs on the login node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from .finding import Finding
from .job import try_job
from .machine import disk
from .needs import needs
from .profile import compare, read_profile
from .slurm import default_of, partitions

COMMANDS = ("sinfo", "sbatch", "srun", "squeue", "scancel")


def cluster(config: Path, profile: Path, results: Path) -> Iterator[Finding]:
    """What ``profile`` asks of the cluster, and what the study needs on the login node."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        change = "Run this on a login node of the cluster; some want `module load slurm` first."
        yield Finding("slurm", f"not found: {', '.join(absent)}", "wrong", change)
        return
    there = yield from partitions()
    wishes = yield from read_profile(profile)
    if there:
        for wish in wishes:
            yield from compare(wish, there, profile)
        # One job per kind of place, on those that exist.
        places = {w.place: w for w in reversed(wishes) if (w.partition or default_of(there)) in there}
        for wish in reversed(places.values()):
            yield try_job(wish, results)
    yield disk(results)
    yield from needs(config)
