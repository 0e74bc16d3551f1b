"""SLURM jobs that an earlier Snakemake of the same workflow has left in the queue.

If Snakemake is killed, its jobs stay. One that SLURM requeues may still be pending when the workflow, started again,
has finished the same work with other jobs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .slurm import output_of


@dataclass(frozen=True)
class Job:
    """A job in the queue."""

    id: str
    state: str
    comment: str  # Snakemake's SLURM executor writes rule and wildcards into it; a wildcard is the fingerprint


def leftover_jobs(folder: Path, fingerprints: Collection[str]) -> list[Job]:
    """Own jobs in the queue that were submitted in ``folder`` and have one of ``fingerprints``.

    Empty on a machine without SLURM. UserError if squeue fails.
    """
    if shutil.which("squeue") is None:
        return []
    found = []
    for line in output_of("squeue", "--me", "--noheader", "--format=%i|%T|%Z|%k").splitlines():
        job, state, where, comment = line.split("|", 3)
        if (
            Path(where).resolve() == folder.resolve()
            and state != "COMPLETING"
            and any(f in comment for f in fingerprints)
        ):
            found.append(Job(job, state, comment))
    return found


def report_leftovers(folder: Path, fingerprints: Collection[str]) -> None:
    """At the start of a workflow: print which jobs are already in the queue. Nothing is cancelled."""
    try:
        jobs = leftover_jobs(folder, fingerprints)
    except UserError as error:
        print(f"policygrain: jobs of an earlier Snakemake were not looked for: {error}", file=sys.stderr)
        return
    if jobs:
        print(
            f"policygrain: {_count(jobs)} of an earlier Snakemake in the queue do the same work: {_list(jobs)}. A run "
            f"is never trained by two jobs at a time. To cancel them: scancel {' '.join(j.id for j in jobs)}",
            file=sys.stderr,
        )


def cancel_leftovers(folder: Path, fingerprints: Collection[str]) -> None:
    """After a workflow has succeeded: cancel what is left in the queue, whose work is done, and print it."""
    try:
        jobs = leftover_jobs(folder, fingerprints)
        if jobs:
            output_of("scancel", *(j.id for j in jobs))
            print(f"policygrain: cancelled {_count(jobs)}, whose work is done: {_list(jobs)}", file=sys.stderr)
    except UserError as error:
        print(f"policygrain: jobs of an earlier Snakemake may be left in the queue: {error}", file=sys.stderr)


def _count(jobs: list[Job]) -> str:
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}"


def _list(jobs: list[Job]) -> str:
    return ", ".join(f"{j.id} ({j.comment}, {j.state.lower()})" for j in jobs)
