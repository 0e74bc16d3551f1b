"""Processes that train a run: the ranks that torchrun or SLURM's `srun` starts, and programs that are watched here."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Stopped, UserError

if TYPE_CHECKING:
    from ..study.schema import Training
    from ..train.stopping import Stop

TIMEOUT = timedelta(minutes=30)  # a rank that is further behind than this counts as failed
POLL_SECONDS = 1.0
END_SECONDS = 20.0  # from SIGTERM to SIGKILL
# The kernel kills a program when this process is killed (PR_SET_PDEATHSIG is 1): otherwise it would go on training in
# the folder while the next command starts it there again.
END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
LAST_LINES = 15  # of its output, in the message of a failed run


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


@contextlib.contextmanager
def processes(settings: Training) -> Iterator[None]:
    """Connect the ranks that torchrun or `srun` has started, if there are several; each sees one GPU."""
    if settings.trainer in ("verl", "command") or os.environ.get("WORLD_SIZE", "1") == "1":  # the first start their own
        yield
        return
    # Before CUDA is initialised, because an engine uses the first visible GPU; some launchers have already done this.
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
    tasks = slurm.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in slurm or tasks == "1":
        return
    # Above the ports of Ray's workers and below those of outgoing connections; it differs between job steps.
    port = 20_000 + (31 * int(slurm["SLURM_JOB_ID"]) + int(slurm["SLURM_STEP_ID"])) % 12_000
    os.environ |= {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": re.split(r"\D", slurm.get("SLURM_STEP_TASKS_PER_NODE", "1"))[0],
        "MASTER_ADDR": slurm.get("MASTER_ADDR") or _address_of_first(slurm["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": slurm.get("MASTER_PORT") or str(port),
    }


def _address_of_first(nodes: str) -> str:
    command = ["scontrol", "--oneliner", "show", "node", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return re.findall(r"\bNodeAddr=(\S+)", done.stdout)[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(f"`{' '.join(command)}` gives no address; set MASTER_ADDR to the name of a node.") from error


def own_gpu(local: int, visible: str) -> str:
    """The GPU of the process with rank ``local`` on its node. ``visible``: as CUDA_VISIBLE_DEVICES; empty: no GPU."""
    names = visible.split(",")
    return names[local % len(names)]


def run_program(
    name: str,
    command: Sequence[str],
    cwd: Path,
    output: Path,
    variables: Mapping[str, str],
    stop: Stop | None,
    resumes: Callable[[], str],
    watch: Callable[[], None] = lambda: None,
    holds_lock: bool = False,  # what it starts keeps the run locked, also if this process is killed
) -> None:
    """Run ``command`` until it has ended; its output is appended to ``output``, whose folder messages name.

    Stopped on a signal, at the time limit, and if the program ends with the exit code for that; UserError if it fails.
    ``watch`` is called while it runs, and ends it by an error. ``resumes()`` says where the next attempt begins.
    """
    folder = output.parent
    with output.open("ab") as file:
        # In a session of its own: a signal to this process does not end the program before this process decides.
        process = subprocess.Popen(
            [sys.executable, "-c", END_WITH_PARENT, *command],
            cwd=cwd,
            stdout=file,
            stderr=file,
            env={**os.environ, **variables},
            start_new_session=True,
            close_fds=not holds_lock,
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                if stop is not None and (reason := stop.after_step(END_SECONDS)) is not None:
                    raise Stopped(f"{folder}: stopped by {reason}; {resumes()}")
                watch()
        finally:
            _end(process)
    ended = f"{folder}: {name} ended with exit code {process.returncode}; {resumes()}"
    if process.returncode == Stopped.exit_code:
        raise Stopped(ended)
    if process.returncode:
        last = "\n".join(output.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise UserError(f"{ended} See {output}; the last lines:\n{last}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the program and all that it has started; what is left after END_SECONDS is killed."""
    deadline = time.monotonic() + END_SECONDS
    with contextlib.suppress(ProcessLookupError):  # nothing is left
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()  # removes it from the group when it has ended
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
