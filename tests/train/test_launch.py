"""One run of several processes: what torchrun and srun start trains as one process does, and ends as one."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import STOPPED, main
from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_metrics, run_summary, token_view
from policygrain.train.launch import _own_gpu

from ..support.small import SMALL, write_study

TIMEOUT = 240


def command(folder: Path, made: tuple[Path, Path], run: str, **training: Any) -> list[str]:
    """`policygrain train` of the small study, without what starts it."""
    config = write_study(folder / f"{run}.yaml", {**SMALL, "training": {**SMALL["training"], **training}})
    data, start = made
    paths = {"config": config, "data": data, "start-model": start, "run-dir": folder / run}
    return ["train", *(str(x) for name, path in paths.items() for x in (f"--{name}", path))]


def torchrun(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_port())]
    return subprocess.run(
        [*launcher, "-m", "policygrain.cli", *arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )


def step_of_slurm(arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Two processes in the environment that `srun --ntasks 2` gives to each."""
    port, running = str(free_port()), []
    for rank in range(2):
        slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        slurm |= {"SLURM_STEP_NODELIST": "node1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        slurm |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
        running.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **slurm},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return running


def ended(running: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    """(exit codes, what each printed)."""
    said = [process.communicate(timeout=TIMEOUT)[1] for process in running]
    return [process.returncode for process in running], said


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def tokens(run: Path, step: int) -> list[list[str]]:
    return [sample.tokens for sample in token_view(RunFolder(run).tokens(step)).samples]


def assert_same_run(one: Path, other: Path) -> None:
    """The same tokens were sampled, and numbers differ by rounding."""
    assert [tokens(one, step) for step in (0, 2, 3)] == [tokens(other, step) for step in (0, 2, 3)]
    rows, same = (run_metrics(RunFolder(run)) for run in (one, other))
    assert [row["step"] for row in rows] == [row["step"] for row in same] == [0, 1, 2, 3, 4]
    for row, found in zip(rows, same, strict=True):
        # The share of tokens whose entropy fell: at a step's first update it neither fell nor rose, but for rounding.
        row.pop("mask_share", None), found.pop("mask_share", None)
        assert found == pytest.approx(row, rel=2e-3, abs=1e-5)


@pytest.fixture(scope="module")
def alone(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    assert main(command(folder, made, "alone")) == 0
    return folder / "alone"


def test_two_ranks_train_what_one_process_does(made: tuple[Path, Path], alone: Path, tmp_path: Path) -> None:
    done = torchrun(command(tmp_path, made, "two"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(alone, tmp_path / "two")
    assert [run_summary(RunFolder(run)).environment.ranks for run in (alone, tmp_path / "two")] == [1, 2]


def test_two_ranks_with_a_sharded_model_sample_ahead_as_one_process_does(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    assert main(command(tmp_path, made, "alone", ahead=1)) == 0
    done = torchrun(command(tmp_path, made, "two", ahead=1, fsdp={}))
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(tmp_path / "alone", tmp_path / "two")


def test_a_signal_to_one_rank_stops_both_after_one_step_and_one_process_goes_on(
    made: tuple[Path, Path], alone: Path, tmp_path: Path
) -> None:
    """With a sharded model, of which either has a half, and then one has all."""
    arguments = command(tmp_path, made, "run", fsdp={})
    running = step_of_slurm(["-m", "policygrain.cli", *arguments])
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.005)
    running[1].send_signal(signal.SIGUSR1)
    codes, said = ended(running)
    assert codes == [STOPPED, STOPPED], said
    assert sum("stopped by SIGUSR1 after step" in text for text in said) == 1, said
    assert main(arguments) == 0
    assert_same_run(alone, tmp_path / "run")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.vllm
def test_each_rank_has_an_engine_that_gets_the_whole_sharded_model(made: tuple[Path, Path], tmp_path: Path) -> None:
    """A half of the weights alone, or those of the step before, would be off by far more than rounding."""
    sharded: dict = {}
    done = torchrun(command(tmp_path, made, "run", engine="vllm", kv_gib=0.1, fsdp=sharded, learning_rate=1e-2))
    assert done.returncode == 0, done.stderr[-3000:]
    *rows, last = run_metrics(RunFolder(tmp_path / "run"))
    assert last["step"] == 4 and run_summary(RunFolder(tmp_path / "run")).environment.ranks == 2
    assert max(row["kl_initial"] for row in rows) > 1e-3, "the weights must have moved"
    assert max(row["mismatch_max"] for row in rows) < 1e-4


@pytest.mark.parametrize(
    ("local", "visible", "own"), [(1, "0,1", "1"), (1, "GPU-a", "GPU-a"), (3, "4,6", "6"), (1, "1", "1"), (1, "", "")]
)
def test_a_rank_sees_one_gpu_of_its_node_s(local: int, visible: str, own: str) -> None:
    assert _own_gpu(local, visible) == own


MISTAKE = """
import sys
from policygrain.errors import UserError
from policygrain.train.launch import process_group
from policygrain.train.ranks import gather, ranks
try:
    with process_group():
        if ranks()[0] == 1:
            raise UserError("only here")
        gather([])  # waits for the other one
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def test_a_mistake_on_one_rank_ends_all_and_is_said_once() -> None:
    codes, said = ended(step_of_slurm(["-c", MISTAKE]))
    assert codes == [2, 2] and "".join(said).count("only here") == 1, said


def test_a_lost_rank_holds_nobody_up(made: tuple[Path, Path], alone: Path, tmp_path: Path) -> None:
    """Killed in the middle of a run: the other one ends by itself, and one process goes on."""
    arguments = command(tmp_path, made, "killed")
    running = step_of_slurm(["-m", "policygrain.cli", *arguments])
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "killed" / "checkpoints" / "step00001").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    running[1].kill()
    codes, said = ended(running)
    assert codes == [1, -signal.SIGKILL], said
    assert said[0].count("another rank of this run has ended") == 1 and "Traceback" not in said[0], said
    assert main(arguments) == 0
    assert_same_run(alone, tmp_path / "killed")
    assert run_summary(RunFolder(tmp_path / "killed")).environment.ranks == 1
