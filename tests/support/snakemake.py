"""Snakemake as a user calls it, and what its dry runs say."""

import atexit
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

# Every call is a process of its own, forked from one that has imported Snakemake, which takes longer than a dry run.
# It is not the one of grading's workers, which write nothing and ignore SIGTERM.
SERVER = forkserver.ForkServer()
SERVER.set_forkserver_preload(["snakemake.cli", "policygrain.commands.workflow"])
TIMEOUT = 1800  # seconds; the machine may have other things to do
Done = subprocess.CompletedProcess[str]


def copy_checkout(root: Path, to: Path) -> None:
    """The files of a checkout without results, environment and history."""
    hidden = shutil.ignore_patterns(".*", "__pycache__")

    def left_out(folder: str, names: list[str]) -> set[str]:
        return set(hidden(folder, names)) | ({"results"} if Path(folder) == root else set())

    shutil.copytree(root, to, ignore=left_out)


def options(root: Path, folder: Path, study: Path | str) -> list[str]:
    """Of every call. Runs that log themselves in MLflow have tests of their own."""
    configuration = [str(root / study), str(Path(__file__).with_name("not_live.yaml"))]
    return ["--snakefile", str(root / "Snakefile"), "--directory", str(folder), "--configfile", *configuration]


def call(root: Path, folder: Path, study: Path | str, *arguments: str, **environment: str) -> Done:
    """The workflow of the checkout ``root`` in a working folder of its own."""
    cores = [] if "--cores" in arguments else ["--cores", "2"]
    command = [*options(root, folder, study), *cores, *arguments]
    inherited = {key: value for key, value in os.environ.items() if key != "POLICYGRAIN_DATA"}
    environment = {**inherited, "MLFLOW_TRACKING_URI": "", **environment}
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        arguments = (command, os.getcwd(), environment, out.name, err.name)
        process = multiprocessing.get_context("forkserver").Process(target=_main, args=arguments)
        with patch.object(forkserver, "connect_to_new_process", SERVER.connect_to_new_process):
            process.start()
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{command} takes longer than {TIMEOUT} s"
        return Done(command, process.exitcode, out.read(), err.read())


def _main(arguments: Sequence[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    """Snakemake's command line, in its own process; ``out`` and ``err`` are files for what it prints."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments

    from snakemake.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which a process of multiprocessing leaves out


def snakemake(root: Path, folder: Path, study: Path | str, *arguments: str, **environment: str) -> Done:
    """`call`, which must succeed."""
    done = call(root, folder, study, *arguments, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def jobs(done: Done) -> dict[str, int]:
    """Rule → jobs, of a call's job table, without the target rules; empty where there was nothing to do."""
    table = re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    return {rule: int(count) for rule, count in table if rule not in ("all", "figures", "total")}


def planned(root: Path, folder: Path, study: Path | str, *targets: str) -> dict[str, int]:
    """Rule → jobs that a dry run would start."""
    done = snakemake(root, folder, study, "--dry-run", *targets)
    assert jobs(done) or "Nothing to be done" in done.stdout + done.stderr, done
    return jobs(done)


def outputs(root: Path, folder: Path, study: Path | str) -> list[Path]:
    """Every file that the jobs of a study declare, there or not."""
    lines = snakemake(root, folder, study, "--summary", "all").stdout.splitlines()
    return [folder / line.split("\t")[0] for line in lines[1:] if line.startswith("results/")]
