"""A cluster: what the profile asks of it, whether jobs can work there, what the study needs on the login node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from .finding import Finding
from .job import try_job
from .machine import disk
from .needs import folders_of, needs, read_study, rules_with_vllm
from .profile import ResourceRequest, compare, read_profile
from .slurm import default_of, memory_of_jobs, partitions

COMMANDS = ("sinfo", "sbatch", "srun", "squeue", "scancel")


def cluster(config: Path, profile: Path, results: Path) -> Iterator[Finding]:
    """What ``profile`` asks of the cluster, and what the study needs on the login node."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        change = "Run this on a login node of the cluster; some want `module load slurm` first."
        yield Finding("slurm", f"not found: {', '.join(absent)}", "wrong", change)
        return
    there = yield from partitions()
    requests, patience = yield from read_profile(profile)
    study = yield from read_study(config)
    if there:
        yield from memory_of_jobs(patience)
        for request in requests:
            yield from compare(request, there, profile)
        drawing, folders = rules_with_vllm(study), folders_of(study) if study else []
        # One job per kind of place, on those that exist; with an engine where a rule that goes there needs one.
        places: dict[tuple[str, ...], ResourceRequest] = {}
        for request in requests:
            exist = all(name in there for name in request.partitions or [default_of(there) or ""])
            known = exist and "slurm_partition" not in request.expressions
            if known and (request.place not in places or request.rule in drawing):
                places[request.place] = request
        for request in places.values():
            yield try_job(request, results, folders, with_engine=request.rule in drawing)
    yield disk(results)
    if study is not None:
        yield from needs(study)
