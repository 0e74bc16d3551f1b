"""`training.trainer: verl`, with a program in place of verl: attempts, checkpoints, signals and what is read back.

The whole of it with verl itself is in test_verl_run.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from policygrain.errors import Stopped, UserError
from policygrain.job_state import run_status
from policygrain.paths import RunFolder
from policygrain.results import run_metrics, run_summary
from policygrain.study import Study
from policygrain.train.stopping import Stop
from policygrain.trainers.launch import processes
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


@pytest.fixture
def verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the program writes its process id."""
    program, pid = tmp_path / "python", tmp_path / "pid"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(program))
    monkeypatch.setenv("PID_FILE", str(pid))
    monkeypatch.setattr("policygrain.trainers.verl_run.POLL_SECONDS", 0.05)
    return pid


def study(**training: object) -> Study:
    return small_study(training={"trainer": "verl", "verl": {"trainer": {"device": "cpu"}}, **training})


def test_a_killed_attempt_is_resumed_and_its_log_is_continued(
    verl: Path, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setenv("WHAT", "killed after 3")
    with pytest.raises(UserError, match=r"exit code -9; the same command resumes from verl's checkpoint of step 2"):
        train_small(study(), run, *made)
    status = run_status(RunFolder(run))
    assert status is not None and status.status == "FAILED"
    monkeypatch.setenv("WHAT", "ends")
    train_small(study(), run, *made)
    rows = run_metrics(RunFolder(run))
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    # Steps 1 and 2 are of the first attempt; the second one validated at step 2, and made step 3 again.
    assert [row["learning_rate"] for row in rows[:-1]] == [len("killed after 3")] * 2 + [len("ends")] * 2
    assert [row["validation_accuracy"] for row in rows] == [0.0, 0.1, 0.2, 0.3, 0.4]
    summary, record = run_summary(RunFolder(run)), (run / "summary.json").read_bytes()
    assert (summary.environment.engine, summary.final.steps, summary.final.validation_accuracy) == ("verl", 4, 0.4)
    monkeypatch.setenv("WHAT", "no checkpoint")
    train_small(study(), run, *made)  # it has ended: verl is not started
    assert (run / "summary.json").read_bytes() == record


def test_a_run_that_died_without_a_checkpoint_says_so(
    verl: Path, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHAT", "no checkpoint")
    with pytest.raises(UserError, match="no checkpoint, so the same command starts from the beginning") as raised:
        train_small(study(), tmp_path / "run", *made)
    assert str(raised.value).endswith("the GPU is lost")


def test_verl_is_ended_at_the_time_limit(
    verl: Path, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHAT", "waits after 2")
    newest = tmp_path / "run" / "verl" / "checkpoints" / "latest_checkpointed_iteration.txt"

    class WhenSaved(Stop):
        def after_step(self, seconds: float) -> str | None:
            return "SIGTERM" if newest.exists() else None

    with pytest.raises(Stopped, match="stopped by SIGTERM; the same command resumes from verl's checkpoint of step 2"):
        train_small(study(), tmp_path / "run", *made, stop=WhenSaved())
    with pytest.raises(ProcessLookupError):
        os.kill(int(verl.read_text()), 0)


def test_a_changed_folder_is_not_trained(
    verl: Path, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHAT", "killed after 3")
    with pytest.raises(UserError):
        train_small(study(), tmp_path / "run", *made)
    config = tmp_path / "run" / "verl" / "verl.yaml"
    config.write_text(config.read_text().replace("lr: ", "lr: 1"))
    with pytest.raises(UserError, match=r"verl\.yaml: was changed after the export"):
        train_small(study(), tmp_path / "run", *made)


def test_without_a_gpu_or_a_device_nothing_is_started(
    verl: Path, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"verl trains on GPUs, and none is visible here.*training\.verl\.trainer\.device"
    ):
        train_small(study(verl={}), tmp_path / "run", *made)
    assert not (tmp_path / "run" / "verl").exists() and not verl.exists()


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "MASTER_ADDR": "10.0.0.1",
}


def test_on_several_nodes_ray_is_started_and_calls_the_same_command(
    verl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Replaced(Exception):
        pass

    def execve(*call: object) -> None:
        raise Replaced(*call)

    home = {"HOME": str(tmp_path), "TMPDIR": "/a/long/folder"}
    for name, value in {**STEP, **home, "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "policygrain.cli", "train"])
    settings = study(verl={"trainer": {"n_gpus_per_node": 8}}).training
    with pytest.raises(Replaced) as replaced, processes(settings):
        pass
    ray, command, variables = replaced.value.args
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


def test_several_tasks_per_node_are_refused(verl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**STEP, "SLURM_STEP_NUM_TASKS": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(UserError, match=r"one of 8 tasks on 2 nodes\. Set `tasks` to the number of nodes"),
        processes(study().training),
    ):
        pass
