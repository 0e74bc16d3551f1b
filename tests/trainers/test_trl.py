"""Runs by TRL: paired with those of the loop, resumed byte for byte, on one process and on two."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.nn.utils import parameters_to_vector

from policygrain.cli import main
from policygrain.errors import Stopped, UserError
from policygrain.model.loading import load_model
from policygrain.paths import RunFolder
from policygrain.results import run_metrics, run_summary
from policygrain.study import Study
from policygrain.train.stopping import Stop

from ..support.files import flip_bit
from ..support.small import SMALL, assert_same_end, assert_same_run, small_study, train_small, write_study

pytestmark = pytest.mark.trl
TIMEOUT = 240
DATA = yaml.safe_load(Path(__file__).with_name("trl.yaml").read_text())
CHANGED = DATA["changed"]


def study(method: str, trainer: str = "trl", model: dict[str, Any] | None = None, **training: Any) -> Study:
    return small_study(
        model=model or {},
        training={"trainer": trainer, **training},
        methods=DATA["methods"],
        experiments={"headline": {"methods": [method]}},
    )


@pytest.mark.parametrize(("method", "training"), DATA["paired"])
def test_a_run_by_trl_is_the_run_of_the_loop_but_for_rounding(method, training, made, tmp_path):
    one = train_small(study(method, "policygrain", **training), tmp_path / "loop", *made)
    other = train_small(study(method, **training), tmp_path / "trl", *made)
    same_samples = assert_same_run(one, other)
    loop, trl = (run_summary(RunFolder(run)) for run in (one, other))
    assert (loop.environment.engine, trl.environment.engine) == ("policygrain", "trl") and loop.key != trl.key
    models = (load_model(str(folder))[0] for folder in (made[1], one / "model", other / "model"))
    before, weights, same = (parameters_to_vector(model.parameters()) for model in models)
    assert not same_samples or (weights - same).norm() < 1e-3 * (weights - before).norm()
    if method == "few_groups":
        assert trl.final.updates < trl.final.steps * 8, "no batch lacked groups, so no optimizer step was left out"


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    return train_small(study("tepo", **CHANGED), tmp_path_factory.mktemp("whole") / "run", *made)


def test_a_run_that_is_stopped_after_each_step_ends_byte_for_byte(made, whole, tmp_path, capsys):
    """The time limit is over before each step; the newest checkpoint is damaged once."""
    run, changed = tmp_path / "run", study("tepo", **CHANGED)
    for session, step in enumerate((1, 2, 2, 3, 4)):
        with pytest.raises(Stopped, match=f"stopped by the time limit after step {step} of 4, and saved"):
            train_small(changed, run, *made, stop=Stop(deadline=0.0))
        assert not list((run / "checkpoints").glob(".step/*"))
        assert (session == 2) == ("step00002: skipped" in capsys.readouterr().err)
        if session == 1:
            flip_bit(run / "checkpoints" / "step00002" / "optimizer.pt")
    train_small(changed, run, *made)
    assert_same_end(run, whole)
    assert not list((run / "checkpoints").iterdir()), "an ended run needs no checkpoints"


def command(made: tuple[Path, Path], run: Path) -> list[str]:
    """`policygrain train` of the small study, without what starts it."""
    changes = {"training": SMALL["training"] | {"trainer": "trl", **CHANGED}}
    changes["experiments"] = {"headline": {"methods": ["tepo"]}}
    config = write_study(run.with_suffix(".yaml"), SMALL | changes)
    return ["train", "--config", str(config), "--results", str(made[0].parent), "--run-dir", str(run)]


def start(*arguments: str, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    started = [sys.executable, *launcher, "-m", "policygrain.cli", *arguments]
    return subprocess.Popen(started, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.exists(), process.communicate()[1][-3000:]


def test_a_killed_run_ends_byte_for_byte(made, whole, tmp_path):
    arguments = command(made, tmp_path / "run")
    process = start(*arguments)
    wait_for(tmp_path / "run" / "checkpoints" / "step00001", process)
    process.kill()
    _, printed = process.communicate(timeout=TIMEOUT)
    assert process.returncode == -signal.SIGKILL, printed[-3000:]
    assert main(arguments) == 0
    assert_same_end(tmp_path / "run", whole)


def test_two_processes_sample_and_train_as_one_does(made, whole, tmp_path):
    """SIGTERM after the first step stops both; the same command goes on."""
    arguments = command(made, tmp_path / "two")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start(*arguments, launcher=torchrun)
    try:
        wait_for(tmp_path / "two" / "checkpoints" / "step00001", process)
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=TIMEOUT)
        assert process.returncode and printed.count("stopped by SIGTERM after step") == 2, printed[-3000:]
        process = start(*arguments, launcher=torchrun)
        _, printed = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, printed[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert_same_run(whole, tmp_path / "two")
    assert run_summary(RunFolder(tmp_path / "two")).environment.ranks == 2


def test_an_adapter_learns_as_in_the_loop_and_resumes(made, tmp_path):
    lora = {"lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}}
    one = train_small(study("to_initial", "policygrain", lora, learning_rate=1e-2), tmp_path / "loop", *made)
    changed = study("to_initial", "trl", lora, learning_rate=1e-2)
    other = train_small(changed, tmp_path / "trl", *made)
    assert_same_run(one, other)
    with pytest.raises(Stopped):
        train_small(changed, tmp_path / "stopped", *made, stop=Stop(deadline=0.0))
    assert_same_end(train_small(changed, tmp_path / "stopped", *made), other)


def test_bfloat16_is_trained_and_saved(made, tmp_path):
    run = train_small(study("grpo", compute="bfloat16"), tmp_path / "run", *made)
    assert 1e-4 < max(row["mismatch_max"] for row in run_metrics(RunFolder(run))[:-1]) < 0.2
    assert json.loads((run / "model" / "config.json").read_text())["dtype"] == "bfloat16"


def test_settings_that_trl_refuses_are_one_message(tmp_path):
    from policygrain.trainers.trl import grpo_config

    settings = study("grpo", trl={"fsdp": True, "fsdp_config": {"auto_wrap_policy": "sideways"}}).training
    with pytest.raises(UserError, match=r"TRL refuses the settings of this run: .*sideways"):
        grpo_config(settings, output_dir=str(tmp_path), use_cpu=True, bf16=False)
