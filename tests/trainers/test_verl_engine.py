"""`training.trainer: verl`, with a program in place of verl: attempts, checkpoints, signals and what is read back.

The whole of it with verl itself is in test_verl_run.py.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest

from policygrain.errors import Stopped, UserError
from policygrain.job_state import run_status
from policygrain.paths import RunFolder
from policygrain.results import run_metrics, run_summary
from policygrain.study import Study
from policygrain.train.stopping import Stop
from policygrain.trainers.launch import launcher, processes
from policygrain.trainers.verl_config import PYTHON
from policygrain.trainers.verl_run import on_several_nodes

from ..support.small import small_study, train_small

# What `python -m verl.trainer.main_ppo` leaves in the folder of a run, of 4 steps in all.
PROGRAM = """#!{python}
import json, os, shutil, sys, time
from pathlib import Path
import yaml

arguments = sys.argv[1:]
if arguments[0] == "-c":
    if "version" in arguments[1]:
        print("0.9.1")
        sys.exit()
    os.execv(arguments[2], arguments[2:])
folder, what = Path(os.environ["POLICYGRAIN_EXPORTED"]), os.environ["WHAT"]
Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
if what == "no checkpoint":
    sys.exit("the GPU is lost")
checkpoints = folder / "checkpoints"
newest = checkpoints / "latest_checkpointed_iteration.txt"
first = int(newest.read_text()) if newest.exists() else 0
last = {{"killed after 3": 3, "waits after 2": 2, "ends": 4}}[what]
checkpoints.mkdir(exist_ok=True)
with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as log:
    for step in range(first, last + 1):
        data = {{"val-core/small/reward/mean@1": step / 10}}
        if step > first:
            data |= {{"response_length/mean": 3.0, "critic/score/mean": 0.5, "actor/lr": len(what)}}
        log.write(json.dumps({{"step": step, "data": data}}) + "\\n")
    newest.write_text("2")
    if what == "killed after 3":
        log.write('{{"step": 4, "da')
        log.flush()
        os.kill(os.getpid(), 9)
if what == "waits after 2":
    time.sleep(600)
start = yaml.safe_load((folder / "verl.yaml").read_text())["actor_rollout_ref"]["model"]["path"]
model = checkpoints / "global_step_4" / "actor" / "huggingface"
shutil.copytree(start, model)
weights = model / "model.safetensors"
content = bytearray(weights.read_bytes())
content[len(content) // 2] ^= 1
weights.write_bytes(content)
newest.write_text("4")
"""


@dataclass
class Verl:
    """Trains in ``run`` with the program in place of verl; ``pid`` is the file in which it writes its process id."""

    run: Path
    made: tuple[Path, Path]
    pid: Path

    def train(self, what: str, stop: Stop | None = None, **training: object) -> RunFolder:
        os.environ["WHAT"] = what
        return RunFolder(train_small(study(**training), self.run, *self.made, stop=stop))


@pytest.fixture
def verl(tmp_path, made, monkeypatch):
    program, pid = tmp_path / "python", tmp_path / "pid"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    for name, value in {PYTHON: str(program), "PID_FILE": str(pid), "WHAT": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("policygrain.trainers.verl_run.POLL_SECONDS", 0.05)
    return Verl(tmp_path / "run", made, pid)


def study(**training: object) -> Study:
    return small_study(training={"trainer": "verl", "verl": {"trainer": {"device": "cpu"}}, **training})


def test_a_killed_attempt_is_resumed_and_its_log_is_continued(verl):
    with pytest.raises(UserError, match=r"exit code -9; the same command resumes from verl's checkpoint of step 2"):
        verl.train("killed after 3")
    assert run_status(RunFolder(verl.run)).status == "FAILED"
    config = verl.run / "verl" / "verl.yaml"
    exported = config.read_text()
    config.write_text(exported.replace("lr: ", "lr: 1"))
    with pytest.raises(UserError, match=r"verl\.yaml: was changed after the export"):
        verl.train("ends")
    config.write_text(exported)
    run = verl.train("ends")
    rows = run_metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    # Steps 1 and 2 are of the first attempt; the second one validated at step 2, and made step 3 again.
    assert [row["learning_rate"] for row in rows[:-1]] == [len("killed after 3")] * 2 + [len("ends")] * 2
    assert [row["validation_accuracy"] for row in rows] == [0.0, 0.1, 0.2, 0.3, 0.4]
    summary, record = run_summary(run), run.summary.read_bytes()
    assert (summary.environment.engine, summary.final.steps, summary.final.validation_accuracy) == ("verl", 4, 0.4)
    verl.train("no checkpoint")  # it has ended: verl is not started
    assert run.summary.read_bytes() == record


def test_a_run_that_died_without_a_checkpoint_says_so(verl):
    with pytest.raises(UserError, match="no checkpoint, so the same command starts from the beginning") as raised:
        verl.train("no checkpoint")
    assert str(raised.value).endswith("the GPU is lost")


def test_verl_is_ended_at_the_time_limit(verl):
    newest = verl.run / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"

    class WhenSaved(Stop):
        def after_step(self, seconds: float) -> str | None:
            return "SIGTERM" if newest.exists() else None

    with pytest.raises(Stopped, match="stopped by SIGTERM; the same command resumes from verl's checkpoint of step 2"):
        verl.train("waits after 2", stop=WhenSaved())
    with pytest.raises(ProcessLookupError):
        os.kill(int(verl.pid.read_text()), 0)


def test_without_a_gpu_or_a_device_nothing_is_started(verl, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=r"verl trains on GPUs, and none is visible.*training\.verl\.trainer\.device"):
        verl.train("ends", verl={})
    assert not (verl.run / "verl").exists() and not verl.pid.exists()


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "MASTER_ADDR": "10.0.0.1",
}


def test_on_several_nodes_ray_is_started_and_calls_the_same_command(verl, tmp_path, monkeypatch):
    home = {"HOME": str(tmp_path), "TMPDIR": "/a/long/folder", "SLURM_STEP_NUM_TASKS": "8"}
    for name, value in (STEP | home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "execve", execve := Mock(side_effect=SystemExit))
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "policygrain.cli", "train"])
    settings = study(verl={"trainer": {"n_gpus_per_node": 8}}).training
    with pytest.raises(UserError, match="one of 8 tasks on 2 nodes"):
        processes(settings).__enter__()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(SystemExit):
        processes(settings).__enter__()
    ray, command, variables = execve.call_args.args
    assert " ".join(command) == (
        f"{tmp_path / 'ray'} symmetric-run --address 10.0.0.1:20217 --min-nodes 2 --num-gpus=8 -- "
        f"{sys.executable} -m policygrain.cli train"
    )
    assert ray == tmp_path / "ray" and variables["PATH"].startswith(f"{tmp_path}:")
    assert (variables["RAY_ADDRESS"], variables["RAY_TMPDIR"]) == ("10.0.0.1:20217", "/tmp")
    assert variables["RAY_AUTH_MODE"] == "token" and len((tmp_path / ".ray" / "auth_token").read_text()) == 64
    # Within Ray the command trains, on the nodes of the step.
    assert on_several_nodes({}) == []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:20217")
    with processes(settings):
        assert "RANK" not in os.environ
    changes = on_several_nodes({"EXPORTED": "/a/arm+x=1"})
    assert {"++trainer.nnodes=2", "++ray_kwargs.ray_init.address=auto"} <= set(changes)
    assert changes[-1] == "++ray_kwargs.ray_init.runtime_env.env_vars.EXPORTED='/a/arm+x=1'"


def test_processes_of_an_mpi_job_are_started_by_its_launcher():
    assert launcher({"nodes": 2}) == ""
    assert "--nodes=2 --ntasks=2 " in launcher({"mpi": "srun", "nodes": 2}), "without a number one per node"
    assert "--nodes=2 --ntasks=8 " in launcher({"mpi": "srun", "nodes": 2, "tasks_per_node": 4})
