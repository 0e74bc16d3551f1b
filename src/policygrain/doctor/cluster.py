"""Checks of a SLURM cluster: the profile's resource requests, a test job, and the study's needs on the login node."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from .finding import Finding
from .job import try_job
from .machine import disk
from .profile import ResourceRequest, compare, read_profile
from .requirements import check_requirements, read_study, rules_with_vllm, shared_folders
from .slurm import check_job_records, default_partition, read_partitions

COMMANDS = ("sinfo", "sbatch", "srun", "squeue", "scancel")


def check_cluster(config: Path, profile: Path, results: Path) -> Iterator[Finding]:
    """Check the cluster against ``profile`` and the study in ``config``; run this on a login node.

    ``results`` is the folder of results, where a test job writes and removes a file.
    """
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if absent:
        change = "Run this on a login node of the cluster; on some, `module load slurm` is needed first."
        yield Finding("slurm", f"not found: {', '.join(absent)}", "wrong", change)
        return
    partitions = yield from read_partitions()
    requests, job_age = yield from read_profile(profile)
    study = yield from read_study(config)
    if partitions:
        yield from check_job_records(job_age)
        for request in requests:
            yield from compare(request, partitions, profile)
        with_vllm, folders = rules_with_vllm(study), shared_folders(study) if study else []
        # One test job per combination of placement options, with vLLM if a rule with these options starts it.
        places: dict[tuple[str, ...], ResourceRequest] = {}
        for request in requests:
            exist = all(name in partitions for name in request.partitions or [default_partition(partitions) or ""])
            known = exist and "slurm_partition" not in request.expressions
            if known and (request.place not in places or request.rule in with_vllm):
                places[request.place] = request
        for request in places.values():
            yield try_job(request, results, folders, with_engine=request.rule in with_vllm)
    yield disk(results)
    if study is not None:
        yield from check_requirements(study)
