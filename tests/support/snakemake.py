"""Snakemake as a user calls it, and what its dry runs say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT = 1800  # seconds; the machine may have other things to do
Done = subprocess.CompletedProcess[str]


def copy_checkout(root: Path, to: Path) -> None:
    """The files of a checkout without results, environment and history."""
    hidden = shutil.ignore_patterns(".*", "__pycache__")

    def left_out(folder: str, names: list[str]) -> set[str]:
        return set(hidden(folder, names)) | ({"results"} if Path(folder) == root else set())

    shutil.copytree(root, to, ignore=left_out)


def call(root: Path, folder: Path, study: Path | str, *arguments: str, **environment: str) -> Done:
    """The workflow of the checkout ``root`` in a working folder of its own."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(folder)]
    cores = [] if "--cores" in arguments else ["--cores", "2"]
    command += ["--configfile", str(root / study), *cores, *arguments]
    inherited = {key: value for key, value in os.environ.items() if key != "POLICYGRAIN_DATA"}
    environment = {**inherited, "MLFLOW_TRACKING_URI": "", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)


def snakemake(root: Path, folder: Path, study: Path | str, *arguments: str, **environment: str) -> Done:
    """`call`, which must succeed."""
    done = call(root, folder, study, *arguments, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def kill_when(
    condition: Callable[[], bool], root: Path, study: Path, folder: Path, *targets: str, seconds: float = 300
) -> None:
    """Call Snakemake and, as soon as the condition holds, kill it with its jobs, as a power cut would."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(folder)]
    command += ["--configfile", str(study), "--cores", "2", *targets]
    output = folder / "killed.txt"
    with (
        output.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True) as process,
    ):
        try:
            end = time.monotonic() + seconds
            while not condition():
                assert process.poll() is None and time.monotonic() < end, output.read_text()[-3000:]
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def jobs(done: Done) -> dict[str, int]:
    """Rule → jobs, of a call's job table, without the target rules; empty where there was nothing to do."""
    table = re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    return {rule: int(count) for rule, count in table if rule not in ("all", "figures", "total")}


def planned(root: Path, folder: Path, study: Path | str, *targets: str) -> dict[str, int]:
    """Rule → jobs that a dry run would start."""
    return jobs(snakemake(root, folder, study, "--dry-run", *targets))


def outputs(root: Path, folder: Path, study: Path | str) -> list[Path]:
    """Every file that the jobs of a study declare, there or not."""
    lines = snakemake(root, folder, study, "--summary", "all").stdout.splitlines()
    return [folder / line.split("\t")[0] for line in lines[1:] if line.startswith("results/")]
