"""Sampling with several engines in parallel, each in its own process and on its own GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import IO

from ..errors import UserError


def gpus() -> list[str]:
    """The GPUs that this process may use, in the notation of CUDA_VISIBLE_DEVICES."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def sample_in_parallel(command: Sequence[str], part: tuple[int, int], engines: int) -> None:
    """Run the policygrain ``command`` in ``engines`` processes, each for its share of ``part`` (i of n).

    GPUs are assigned round robin. If a process fails, the others continue; a UserError names it when all have ended.
    """
    number, parts = part
    devices = gpus()
    processes: list[subprocess.Popen[str]] = []
    readers = []
    before = signal.signal(signal.SIGTERM, _end)
    try:
        for engine in range(engines):
            share = ["--part", f"{number + engine * parts}/{parts * engines}", "--engines", "1"]
            visible_gpu = {"CUDA_VISIBLE_DEVICES": devices[engine % len(devices)]} if devices else {}
            process = subprocess.Popen(
                [sys.executable, "-m", "policygrain.cli", *command, *share],
                env={**os.environ, **visible_gpu},
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stderr is not None
            reader = threading.Thread(target=_pass_on, args=(process.stderr, f"engine {engine + 1} of {engines}"))
            reader.start()
            processes.append(process)
            readers.append(reader)
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for reader in readers:
            reader.join()
        signal.signal(signal.SIGTERM, before)
    if failed := [f"{i} (exit code {code})" for i, code in enumerate(codes, start=1) if code]:
        raise UserError(
            f"evaluate: of {engines} engines, {', '.join(failed)} failed; see the messages above. Sampled responses "
            "are kept; the same command samples the rest."
        )


def _end(number: int, _: FrameType | None) -> None:
    """Handle SIGTERM: exit through `finally`, which terminates the engine processes."""
    raise SystemExit(128 + number)


def _pass_on(stream: IO[str], who: str) -> None:
    for line in stream:
        print(f"{who}: {line}", end="", file=sys.stderr, flush=True)
