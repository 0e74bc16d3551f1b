"""SLURM's commands, and how a run is launched on several nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
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
