"""The process group of a run that several processes train together, started by torchrun or SLURM's `srun`.

Where one of them fails, the launcher ends the others: torchrun does, and `srun --kill-on-bad-exit=1`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

from ..errors import UserError

TIMEOUT = timedelta(minutes=30)  # a rank that is further behind than this counts as failed


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Open the process group of a run that torchrun, or `srun` with several tasks, has started.

    The default process group uses gloo, and NCCL for GPUs; each process sees one GPU. Does nothing for a single
    process. UserError if not all ranks join.
    """
    read_slurm()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    # Before CUDA is initialised, make this process's GPU the only visible one: an engine uses the first visible GPU.
    # Some launchers have already done this.
    local = os.environ["LOCAL_RANK"]
    os.environ["CUDA_VISIBLE_DEVICES"] = own_gpu(int(local), os.environ.get("CUDA_VISIBLE_DEVICES", local))
    import torch
    import torch.distributed as dist

    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(f"the ranks of this run did not connect at {place}: {str(error).splitlines()[0]}") from error
    yield
    dist.barrier()
    if "vllm" not in sys.modules:  # vLLM destroys its groups and this one when the process ends
        dist.destroy_process_group()


def read_slurm() -> None:
    """Set the variables of torchrun from those of `srun`, except in batch scripts and in steps with one task."""
    slurm = os.environ
    if "RANK" in slurm or int(slurm.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return
    os.environ |= {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": re.split(r"\D", slurm.get("SLURM_STEP_TASKS_PER_NODE", "1"))[0],
        "MASTER_ADDR": slurm.get("MASTER_ADDR") or _address_of_first(slurm["SLURM_STEP_NODELIST"]),
        # Below the range of ports for outgoing connections; each step of a job has another port.
        "MASTER_PORT": slurm.get("MASTER_PORT")
        or str(15_000 + (31 * int(slurm["SLURM_JOB_ID"]) + int(slurm["SLURM_STEP_ID"])) % 17_000),
    }


def _address_of_first(nodes: str) -> str:
    """The address of the first of ``nodes``, from SLURM's configuration."""
    command = ["scontrol", "--oneliner", "show", "node", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return re.findall(r"\bNodeAddr=(\S+)", done.stdout)[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(
            f"`{' '.join(command)}` does not give the address of a node; set MASTER_ADDR to a node's name."
        ) from error


def own_gpu(local: int, visible: str) -> str:
    """One of the visible GPUs; none if the list is empty, which disables GPUs."""
    names = visible.split(",")
    return names[local % len(names)]
