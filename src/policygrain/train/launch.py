"""Processes that train one run together: torchrun or SLURM starts them, and none outlives another.

Each rank watches a note in the store by which they met. The first one that ends for any reason but success leaves its
exit code there, and is the only one that speaks.
"""

from __future__ import annotations

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
COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # how far a rank may be behind the others before it counts as lost
POLL_SECONDS = 1.0  # seconds between two looks at the note
EXIT_TIMEOUT = 10.0  # seconds that the rank which may hold the store waits for the others to have read it


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that torchrun, or `srun` with several tasks, started with this one. Alone, it does nothing.

    Opens the default process group (gloo, and NCCL where there are GPUs) and leaves this process one GPU. UserError
    when not all ranks come. A rank that ends ends all of them, with its exit code and its message alone.
    """
    _read_slurm()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        _close_group()
        return
    store, rank, count = _join()
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(store, rank, count, over), daemon=True)
    watch.start()
    try:
        yield
        over.set()
        _close_group()
    except BaseException as error:
        over.set()
        watch.join()
        code = getattr(error, "exit_code", 1)
        first, code = _post_exit_code(store, rank, code)
        _leave(store, rank, count)
        if first and _is_echo(error):
            print(f"policygrain: {_LOST} ({str(error).splitlines()[0]})", file=sys.stderr)
        if not first or _is_echo(error):
            raise SystemExit(code) from error
        raise


_LOST = "another rank of this run has gone or does not answer; look at its log. The same command resumes."


def _read_slurm() -> None:
    """What torchrun would have set, from what `srun` sets; a job's batch script and steps of one task are no ranks."""
    slurm = os.environ
    if "RANK" in slurm or int(slurm.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return
    os.environ |= {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": re.split(r"\D", slurm.get("SLURM_STEP_TASKS_PER_NODE", "1"))[0],
        "MASTER_ADDR": slurm.get("MASTER_ADDR") or _address_of_first(slurm["SLURM_STEP_NODELIST"]),
        # Below the range from which kernels take ports for outgoing connections; two steps of a job do not meet.
        "MASTER_PORT": slurm.get("MASTER_PORT")
        or str(15_000 + (31 * int(slurm["SLURM_JOB_ID"]) + int(slurm["SLURM_STEP_ID"])) % 17_000),
    }


def _address_of_first(nodes: str) -> str:
    """Where the first of ``nodes`` is reached, as SLURM itself reaches it."""
    command = ["scontrol", "--oneliner", "show", "node", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return re.findall(r"\bNodeAddr=(\S+)", done.stdout)[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise UserError(
            f"`{' '.join(command)}` does not say where to meet; set MASTER_ADDR to a node's name."
        ) from error


def _join() -> tuple[Store, int, int]:
    """(what all ranks can read and write, this rank, how many there are), with the process group open."""
    # This process's GPU is the only one that it sees, before CUDA looks: an engine in it takes the first, too. A
    # launcher may have done so already.
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
        raise UserError(f"the ranks of this run did not meet at {place}: {str(error).splitlines()[0]}") from error
    return dist.PrefixStore("end", store), rank, count


def _own_gpu(local: int, visible: str) -> str:
    """One of the GPUs that are visible; none where they are switched off, which is what an empty list says."""
    names = visible.split(",")
    return names[local % len(names)]


def _close_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():  # as it is where one process holds a sharded model
        dist.barrier()
        if "vllm" not in sys.modules:  # which ends its own groups, and then this one, when the process ends
            dist.destroy_process_group()


def _post_exit_code(store: Store, rank: int, code: int) -> tuple[bool, int]:
    """Leave the exit code for the others. (whether this rank was the first to, the first one's code)."""
    mine = f"{rank} {code}"
    try:
        first = store.compare_set("note", "", mine).decode()
    except RuntimeError:  # the store went with the rank that held it
        return True, code
    return first == mine, int(first.split()[1])


def _leave(store: Store, rank: int, count: int) -> None:
    """Rank 0, in whose process the store may be, goes last."""
    end = time.monotonic() + EXIT_TIMEOUT
    with contextlib.suppress(RuntimeError):
        left = store.add("left", 1)
        while rank == 0 and left < count and time.monotonic() < end:
            time.sleep(0.05)
            left = store.add("left", 0)


def _watch(store: Store, rank: int, count: int, over: threading.Event) -> None:
    """End this process, whatever it waits for, when another one has."""
    while not over.wait(POLL_SECONDS):
        try:
            code = int(store.get("note").decode().split()[1]) if store.check(["note"]) else None
        except RuntimeError:
            if over.is_set():
                return
            print(f"policygrain: {_LOST}", file=sys.stderr)
            code = 1
        if code is not None:
            _leave(store, rank, count)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _is_echo(error: BaseException) -> bool:
    """Whether it only says that another rank is not there: NCCL's errors have a type, gloo's only their text."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
