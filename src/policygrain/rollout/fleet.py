"""The rollout servers of a run: started with it, replaced when they end, ended with it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..errors import UserError
from .server import ServerSettings, write_settings
from .server_engine import ServerEngine

RESTARTS = 10  # of servers beside the trainer, in one attempt at a run
QUEUE_SECONDS = 10.0  # between two looks at SLURM's queue
SETTLE_SECONDS = 10.0  # for servers to end by themselves before they are killed


class Fleet:
    """``count`` servers for the run whose folder of servers is ``folder``.

    With ``submit``, options of `sbatch`, they are job arrays of SLURM, otherwise processes on this machine. Those that
    have ended are started again.
    """

    def __init__(self, folder: Path, count: int, submit: str | None = None, devices: int = 1) -> None:
        """``devices``: GPUs of this machine that the trainer uses; servers use the others."""
        self.folder, self.count, self.submit, self.devices = folder, count, submit, devices
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self._restarts = 0
        self._jobs: list[str] = []  # job arrays
        self._looked = 0.0
        self._lock, self._ended = threading.Lock(), False  # servers are kept by the thread that samples

    def start(self) -> None:
        """Start the servers that are not there yet. UserError if they cannot be started."""
        if self.submit is None:
            self._environments()  # too few GPUs are an error at once
            self.keep()
        elif self.count:
            self._submit(self.submit, range(self.count))

    def keep(self) -> None:
        """Start servers again that have ended. UserError if they end again and again."""
        with self._lock:
            if not self._ended:
                self._keep()

    def _keep(self) -> None:
        if self.submit is not None:
            self._keep_jobs(self.submit)
            return
        for number, environment in enumerate(self._environments()):
            process = self._processes[number]
            if process is not None and process.poll() is None:
                continue
            if process is not None:
                self._restarted(number)
            with self._log(number).open("ab") as log:
                command = _command(self.folder)
                self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def end(self) -> None:
        """End the servers, by force where they do not end by themselves; none is started afterwards."""
        with self._lock:
            self._ended = True
        if self._jobs:
            subprocess.run(["scancel", *self._jobs], capture_output=True, check=False)
        running = [process for process in self._processes if process is not None and process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + SETTLE_SECONDS
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def _restarted(self, number: int) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise UserError(
                f"{self.folder}: rollout servers ended {self._restarts} times; {self._log(number)} says why."
            )

    def _keep_jobs(self, options: str) -> None:
        """Submit again what is no more in the queue."""
        if time.monotonic() - self._looked < QUEUE_SECONDS or not self._jobs:
            return
        self._looked = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--format=%K", f"--jobs={','.join(self._jobs)}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode and "Invalid job id" not in found.stderr:
            return  # SLURM does not answer now
        missing = sorted(set(range(self.count)) - {int(word) for word in found.stdout.split() if word.isdigit()})
        for number in missing:
            self._restarted(number)
        if missing:
            self._submit(options, missing)

    def _log(self, number: int) -> Path:
        return self.folder / f"server{number}.log"

    def _environments(self) -> list[dict[str, str]]:
        """The environment of each server beside the trainer: with a GPU of its own, where there are GPUs."""
        plain = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        found = torch.cuda.device_count()
        if not found:
            return [plain] * self.count
        if found < self.devices + self.count:
            raise UserError(
                f"rollouts.servers: {self.count} servers beside a trainer with {self.devices} GPUs need "
                f"{self.devices + self.count}, and {found} are visible. Use fewer, or rollouts.submit."
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(found)))).split(",")
        return [plain | {"CUDA_VISIBLE_DEVICES": visible[self.devices + i]} for i in range(self.count)]

    def _submit(self, options: str, numbers: Iterable[int]) -> None:
        if shutil.which("sbatch") is None:
            raise UserError("rollouts.submit: there is no sbatch here; set it to null for processes on this machine.")
        log = self.folder / "server%a.log"
        command = [
            "sbatch",
            "--parsable",
            f"--array={','.join(map(str, numbers))}",
            f"--output={log}",
            "--open-mode=append",
        ]
        command += ["--job-name=policygrain-rollouts", *shlex.split(options)]
        command += [f"--wrap=exec {shlex.join(_command(self.folder))}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"rollouts.submit: sbatch refused the servers: {done.stderr.strip()}")
        self._jobs.append(done.stdout.strip().split(";")[0])
        self._looked = time.monotonic()


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "policygrain.cli", "rollout-server", str(folder.parent.resolve())]


@contextmanager
def served_engine(
    folder: Path,
    settings: ServerSettings,
    fleet: Fleet | None,
    *,
    attempt: str,
    chunk: int,
) -> Iterator[ServerEngine]:
    """An engine that samples by servers. ``fleet``: of the rank that starts and ends them; None on other ranks."""
    keep = fleet.keep if fleet is not None else lambda: None
    wait = settings.idle_seconds
    engine = ServerEngine(
        folder, settings.model, attempt, chunk=chunk, wait_seconds=wait, writes=fleet is not None, keep=keep
    )
    if fleet is not None:
        write_settings(folder, settings)
        if fleet.count:
            engine.end_servers()  # of an attempt that was killed
        fleet.start()
    try:
        yield engine
    finally:
        engine.close()
        if fleet is not None:
            engine.end_servers()
            fleet.end()
            for left in folder.glob("weights-*"):
                left.unlink(missing_ok=True)
