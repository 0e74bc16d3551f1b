"""A run by verl on two nodes of a SLURM whose nodes have an address each: `make test-peers` (some minutes)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import yaml

from policygrain.engines.verl_config import PYTHON, verl_python
from policygrain.plan.cluster import launch
from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_metrics, run_summary

from ..conftest import ROOT
from ..support import slurm
from ..support.leftovers import with_in_environment
from ..support.small import SMALL
from .test_verl_run import saved_and_logged_a_step

pytestmark = pytest.mark.verl
TIMEOUT = 1800


def test_two_nodes_train_one_run_and_one_of_them_fails(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Ray of the second node is killed after the first step; the same command goes on from verl's checkpoint."""
    try:
        python = verl_python()
    except PackageNotFoundError:
        pytest.skip("there is no environment with verl (make setup-verl)")
    if (reason := slurm.missing(apart=True)) is not None:
        pytest.skip(reason)
    training = {"trainer": "verl", "verl": {"trainer": {"device": "cpu", "n_gpus_per_node": 1}}, "steps": 2}
    training |= {"prompts_per_step": 8, "validate_every": 1}
    config = tmp_path / "study.yaml"
    config.write_text(yaml.safe_dump({**SMALL, "training": {**SMALL["training"], **training}}))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "policygrain.cli", "train", "--config", str(config)]
    command += ["--results", str(made[0].parent), "--run-dir", str(run)]
    # `tasks` and not `tasks_per_node`, which Snakemake's executor refuses to be 1.
    started = launch({"mpi": "srun", "nodes": 2, "tasks": 2, "cpus_per_task": 4}) + shlex.join(command)
    log = run / "verl" / "verl.log"
    with slurm.running(apart=True) as cluster:
        environment = cluster.environment | {
            "PYTHONPATH": str(ROOT / "src"),
            PYTHON: str(python),
            "RAY_TMPDIR": f"{cluster.folder}/ray",  # of each node
            "GLOO_SOCKET_IFNAME": "eth0",
        }

        def call(output: Path) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*cluster.login, "sh", "-c", f"exec {started}"],
                env=environment,
                stdout=output.open("wb"),
                stderr=subprocess.STDOUT,
            )

        process = call(tmp_path / "first")
        end = time.monotonic() + TIMEOUT
        while not saved_and_logged_a_step(run) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        there = with_in_environment(f"SLURMD_NODENAME={slurm.NODES[1]}\0", f"{cluster.folder}/")
        [raylet] = [pid for pid in there if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet"]
        os.kill(raylet, signal.SIGKILL)
        assert process.wait(TIMEOUT) != 0 and not (run / "summary.json").exists(), _said(tmp_path / "first", log)
        assert call(tmp_path / "second").wait(TIMEOUT) == 0, _said(tmp_path / "second", log)
    summary, rows = run_summary(RunFolder(run)), run_metrics(RunFolder(run))
    assert summary.environment.engine == "verl" and [row["step"] for row in rows] == [0, 1, 2]
    assert len(list((run / "verl").glob("metrics*.jsonl"))) == 2, "the second attempt resumed the first"
    assert f"ip={slurm.NETWORK}." in log.read_text(), "Ray names the address of a process on another node"
    shards = run / "verl" / "checkpoints" / "global_step_2" / "actor"
    assert len(list(shards.glob("model_world_size_2_rank_*.pt"))) == 2


def _said(output: Path, log: Path) -> str:
    return "".join(path.read_text(errors="replace")[-5000:] for path in (output, log) if path.exists())
