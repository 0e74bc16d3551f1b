"""The process group of a run with several ranks, started by torchrun or SLURM. If one rank fails, all ranks end.

A rank that fails writes its exit code to the store of the rendezvous, unless another rank has done so before; all ranks
poll the store and end with this exit code. Only the first rank that fails prints its error message.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store

RENDEZVOUS_TIMEOUT = timedelta(minutes=10)  # from the first rank's start to the last one's
COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # a rank that is further behind than this counts as failed
POLL_SECONDS = 1.0  # seconds between two reads of the exit code in the store
EXIT_TIMEOUT = 10.0  # seconds that rank 0, which may host the store, waits for the others to read the exit code


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Open the process group of a run that torchrun, or `srun` with several tasks, has started.

    The default process group uses gloo, and NCCL for GPUs; each process sees one GPU. Does nothing for a single
    process. UserError if not all ranks join. If a rank fails, all ranks end with its exit code, and only its error
    message is printed.
    """
    _read_slurm()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        _close_group()
        return
    failed: list[int] = []
    atexit.register(_exit_if, failed)  # before others are registered, so it runs after them
    store, rank, count = _join()
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(store, rank, count, finished), daemon=True)
    watcher.start()
    try:
        yield
        finished.set()
        _close_group()
    except BaseException as error:
        finished.set()
        watcher.join()
        code = getattr(error, "exit_code", 1)
        first, code = _post_exit_code(store, rank, code)
        failed.append(code)
        _wait_for_others(store, rank, count)
        if first and _is_communication_error(error):
            print(f"policygrain: {RANK_LOST} ({str(error).splitlines()[0]})", file=sys.stderr)
        if not first or _is_communication_error(error):
            raise SystemExit(code) from error
        raise


def _exit_if(failed: list[int]) -> None:
    """End with the exit code of a failed run, without destructors: a thread of an unfinished collective aborts them."""
    if failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failed[0])


RANK_LOST = "another rank of this run has ended or does not answer; see its log. The same command resumes."


def _read_slurm() -> None:
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


def _join() -> tuple[Store, int, int]:
    """Open the process group; returns (store for exit codes, rank, number of ranks)."""
    # Before CUDA is initialised, make this process's GPU the only visible one: an engine uses the first visible GPU.
    # Some launchers have already done this.
    local = os.environ["LOCAL_RANK"]
    os.environ["CUDA_VISIBLE_DEVICES"] = _own_gpu(int(local), os.environ.get("CUDA_VISIBLE_DEVICES", local))
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, count = next(iter(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT)))
        shared = dist.PrefixStore("group", store)
        dist.init_process_group(backend, store=shared, rank=rank, world_size=count, timeout=COLLECTIVE_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(f"the ranks of this run did not connect at {place}: {str(error).splitlines()[0]}") from error
    return dist.PrefixStore("end", store), rank, count


def _own_gpu(local: int, visible: str) -> str:
    """One of the visible GPUs; none if the list is empty, which disables GPUs."""
    names = visible.split(",")
    return names[local % len(names)]


def _close_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():  # also true for a single process with a sharded model
        dist.barrier()
        if "vllm" not in sys.modules:  # vLLM destroys its groups and this one when the process ends
            dist.destroy_process_group()


def _post_exit_code(store: Store, rank: int, code: int) -> tuple[bool, int]:
    """Write the exit code to the store. Returns (whether no rank did so before, the exit code in the store)."""
    mine = f"{rank} {code}"
    try:
        first = store.compare_set("note", "", mine).decode()
    except RuntimeError:  # the rank that hosts the store has ended
        return True, code
    return first == mine, int(first.split()[1])


def _wait_for_others(store: Store, rank: int, count: int) -> None:
    """On rank 0, whose process may host the store, wait until all other ranks have called this."""
    end = time.monotonic() + EXIT_TIMEOUT
    with contextlib.suppress(RuntimeError):
        left = store.add("left", 1)
        while rank == 0 and left < count and time.monotonic() < end:
            time.sleep(0.05)
            left = store.add("left", 0)


def _watch(store: Store, rank: int, count: int, finished: threading.Event) -> None:
    """End this process, even in a collective operation, when another rank has failed."""
    while not finished.wait(POLL_SECONDS):
        try:
            code = int(store.get("note").decode().split()[1]) if store.check(["note"]) else None
        except RuntimeError:
            if finished.is_set():
                return
            print(f"policygrain: {RANK_LOST}", file=sys.stderr)
            code = 1
        if code is not None:
            _wait_for_others(store, rank, count)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _is_communication_error(error: BaseException) -> bool:
    """Whether the cause is another rank that has ended: NCCL errors have a type, gloo errors only a text."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
