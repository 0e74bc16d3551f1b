"""SLURM's commands: how a run is launched on several nodes, and jobs that a killed Snakemake has left in the queue.

If Snakemake is killed, its jobs stay. One that SLURM requeues may still be pending when the workflow, started again,
has finished the same work with other jobs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError


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


def launch(resources: Mapping[str, Any]) -> str:
    """Launch command of the processes that train one run together; empty for a single process (no `mpi`)."""
    if not resources.get("mpi"):
        return ""
    nodes = resources.get("nodes")
    tasks = resources.get("tasks") or (nodes or 1) * resources["tasks_per_node"]
    where = f"--nodes={nodes} " if nodes else ""
    gpus = f"--gpus={resources['gpu']} " if resources.get("gpu") else ""
    # A step does not inherit the job's CPUs per task; ranks must not wait for one that was killed.
    cpus = f"--cpus-per-task={resources.get('cpus_per_task', 1)} --kill-on-bad-exit=1"
    return f"{resources['mpi']} {where}--ntasks={tasks} {cpus} {gpus}"


def report_leftovers(folder: Path, fingerprints: Collection[str]) -> None:
    """At the start of a workflow: print which jobs are already in the queue. Nothing is cancelled."""
    try:
        jobs = _leftovers(folder, fingerprints)
    except UserError as error:
        print(f"policygrain: jobs of an earlier Snakemake were not looked for: {error}", file=sys.stderr)
        return
    if jobs:
        print(
            f"policygrain: {_listed(jobs, ' of an earlier Snakemake in the queue do the same work')}. A run is never "
            f"trained by two jobs at a time. To cancel them: scancel {' '.join(jobs)}",
            file=sys.stderr,
        )


def cancel_leftovers(folder: Path, fingerprints: Collection[str]) -> None:
    """After a workflow has succeeded: cancel and print jobs that are still queued; their work is done."""
    try:
        if jobs := _leftovers(folder, fingerprints):
            output_of("scancel", *jobs)
            print(f"policygrain: cancelled {_listed(jobs, ', whose work is done')}", file=sys.stderr)
    except UserError as error:
        print(f"policygrain: jobs of an earlier Snakemake may be left in the queue: {error}", file=sys.stderr)


def _leftovers(folder: Path, fingerprints: Collection[str]) -> dict[str, str]:
    """Job → comment and state, of own jobs in the queue that were submitted in ``folder`` with one of ``fingerprints``.

    Snakemake's executor writes rule and wildcards into the comment. Empty without SLURM. UserError if squeue fails.
    """
    if shutil.which("squeue") is None:
        return {}
    lines = output_of("squeue", "--me", "--noheader", "--format=%i|%T|%Z|%k").splitlines()
    return {
        job: f"{comment}, {state.lower()}"
        for job, state, where, comment in (line.split("|", 3) for line in lines)
        if Path(where).resolve() == folder.resolve()
        and state != "COMPLETING"
        and any(fingerprint in comment for fingerprint in fingerprints)
    }


def _listed(jobs: Mapping[str, str], which: str) -> str:
    listed = ", ".join(f"{job} ({text})" for job, text in jobs.items())
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}{which}: {listed}"
