"""Rollout servers as jobs of SLURM: two with vLLM's CPU build, and a trainer, killed by turns."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_metrics
from policygrain.rollout.server import registrations

from ..support.slurm import Cluster
from ..support.small import small_study, train_small

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"),
]
SERVERS = {"where": "servers", "servers": 2, "submit": "--mem=3000", "chunk": 8, "wait_minutes": 10}
TIMEOUT = 600


def test_a_run_ends_the_same_whoever_is_killed(
    cluster: Cluster, made: tuple[Path, Path], root: Path, tmp_path: Path
) -> None:
    """16 requests in chunks of 8, sampled by servers; the same run with the engine in the trainer's process."""
    training = {"engine": "vllm", "steps": 40, "checkpoint_every": 2, "kv_gib": 0.1}
    study, run = tmp_path / "study.yaml", RunFolder(tmp_path / "run")
    settings = small_study(training=training, rollouts=SERVERS).model_dump(mode="json") | {"base": None}
    study.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "policygrain.cli", "train", "--config", str(study), "--run-dir", str(run.path)]
    command += ["--start", str(made[1]), "--data", str(made[0])]
    os.environ.pop("SLURM_JOB_ID", None)

    def submit() -> str:
        export = f"PYTHONPATH={root / 'src'} OMP_NUM_THREADS=1"
        wrapped = f"--wrap=exec env {export} {shlex.join(command)}"
        return cluster.ask("sbatch", "--parsable", "--mem=3000", f"--output={tmp_path}/trainer-%j.log", wrapped)

    def state(job: str) -> str:
        return next(found for name, found, _ in cluster.jobs("all") if name == job)

    def servers() -> list[str]:
        return [name for name, found, _ in cluster.jobs() if name != trainer and found == "RUNNING"]

    def steps() -> int:
        return len(run.metrics.read_text().splitlines()) if run.metrics.exists() else 0

    def kill(job: str) -> None:
        cluster.ask("scancel", "--signal=KILL", "--full", job)

    trainer = submit()
    cluster.wait(lambda: steps() >= 1 and len(registrations(run.servers)) == 2, TIMEOUT, "both servers are there")
    kill(servers()[0])
    then = steps() + 3
    cluster.wait(lambda: steps() >= then, TIMEOUT, "the other server goes on")
    kill(trainer)
    cluster.wait(lambda: state(trainer) not in ("RUNNING", "COMPLETING"), TIMEOUT, "the trainer is killed")
    assert state(trainer) != "COMPLETED" and steps() < 40
    trainer = submit()
    cluster.wait(lambda: state(trainer) == "RUNNING" and servers(), TIMEOUT, "it is resumed")
    kill(servers()[0])
    cluster.wait(lambda: state(trainer) in ("COMPLETED", "FAILED"), TIMEOUT, "the run has ended")
    log = (tmp_path / f"trainer-{trainer}.log").read_text()
    assert state(trainer) == "COMPLETED", log
    cluster.wait(lambda: not cluster.jobs(), TIMEOUT, "its servers have ended with it")
    alone = train_small(small_study(training=training), tmp_path / "alone", *made)
    assert run_metrics(run) == run_metrics(RunFolder(alone))
