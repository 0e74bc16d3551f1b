"""The processes that train a run together, started by torchrun or SLURM's `srun`.

If one of them fails, torchrun and `srun --kill-on-bad-exit=1` end the others.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from ..study.schema import Training

TIMEOUT = timedelta(minutes=30)  # a rank that is further behind than this counts as failed


@contextlib.contextmanager
def processes(settings: Training) -> Iterator[None]:
    """Connect the processes of a run that torchrun, or `srun` with several tasks, has started.

    The default process group uses gloo, and NCCL for GPUs; each process sees one GPU. Does nothing for a single
    process. UserError if not all ranks join.
    """
    if settings.trainer in ("verl", "command"):  # which start their own
        yield
        return
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


def launcher(resources: Mapping[str, Any]) -> str:
    """The command before that of a job, which starts the processes of a run; empty for a single one (no `mpi`)."""
    if not resources.get("mpi"):
        return ""
    nodes = resources.get("nodes")
    tasks = resources.get("tasks") or (nodes or 1) * resources.get("tasks_per_node", 1)
    where = f"--nodes={nodes} " if nodes else ""
    gpus = f"--gpus={resources['gpu']} " if resources.get("gpu") else ""
    # A step does not inherit the job's CPUs per task. If a rank is killed, the others must not wait for it.
    cpus = f"--cpus-per-task={resources.get('cpus_per_task', 1)} --kill-on-bad-exit=1"
    return f"{resources['mpi']} {where}--ntasks={tasks} {cpus} {gpus}"


def read_slurm() -> None:
    """Set the variables of torchrun from those of `srun`, except in batch scripts and in steps with one task."""
    slurm = os.environ
    if "RANK" in slurm or _tasks() == 1:
        return
    address, port = _meeting_point()
    os.environ |= {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": re.split(r"\D", slurm.get("SLURM_STEP_TASKS_PER_NODE", "1"))[0],
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def _tasks() -> int:
    """Tasks of this step of a SLURM job; 1 in a batch script and without SLURM."""
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))


def _meeting_point() -> tuple[str, str]:
    """Address and port on the first node of this step; MASTER_ADDR and MASTER_PORT override them.

    The port is above the ports of Ray's workers and below those of outgoing connections, and differs between job steps.
    """
    slurm = os.environ
    port = 20_000 + (31 * int(slurm["SLURM_JOB_ID"]) + int(slurm["SLURM_STEP_ID"])) % 12_000
    address = slurm.get("MASTER_ADDR") or _address_of_first(slurm["SLURM_STEP_NODELIST"])
    return address, slurm.get("MASTER_PORT") or str(port)


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
    """The GPU of the process with rank ``local`` on its node. ``visible``: as CUDA_VISIBLE_DEVICES; empty: no GPU."""
    names = visible.split(",")
    return names[local % len(names)]
