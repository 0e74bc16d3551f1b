"""Checkpoints that are complete or passed over, what they may contain, and the lock on a run folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.train import checkpoint

from ..support.small import small_study, train_small


def two_checkpoints(folder: Path) -> torch.nn.Linear:
    """Three are saved, of which two are kept; weights are the number of the step."""
    part = torch.nn.Linear(8, 4)
    for step in (1, 2, 3):
        torch.nn.init.constant_(part.weight, step)
        checkpoint.save(folder, step, {"model": part}, {"step": step})
    return part


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".step00004").mkdir()  # what a killed process leaves
    two_checkpoints(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step00002", "step00003"]


def test_a_torn_checkpoint_is_passed_over_with_a_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Cut or changed at any byte of any of its files, or without one of them."""
    two_checkpoints(tmp_path)
    newest = tmp_path / "step00003"
    for name in ("state.pt", "sha256"):
        content = (newest / name).read_bytes()
        places = sorted({*range(0, len(content), max(1, len(content) // 40)), len(content) - 1})
        changed = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in places]
        for torn in (*(content[:i] for i in places), *changed, None):
            (newest / name).unlink() if torn is None else (newest / name).write_bytes(torn)
            part = torch.nn.Linear(8, 4)
            counters = checkpoint.load_newest(tmp_path, {"model": part})
            assert counters == {"step": 2} and part.weight.eq(2).all()
            assert "step00003: skipped" in "".join(capfd.readouterr())
        (newest / name).write_bytes(content)
    assert checkpoint.load_newest(tmp_path, {"model": torch.nn.Linear(8, 4)}) == {"step": 3}
    shutil.rmtree(tmp_path / "step00002")
    (newest / "state.pt").unlink()
    assert checkpoint.load_newest(tmp_path, {}) is None


class Harmful:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("content", ["forbidden", "empty", "no archive"])
def test_a_checkpoint_that_may_not_be_loaded_is_one_message_and_runs_nothing(content: str, tmp_path: Path) -> None:
    """Its checksums are right: somebody else wrote it."""
    two_checkpoints(tmp_path)
    newest, executed = tmp_path / "step00003", tmp_path / "executed"
    if content == "forbidden":
        torch.save({"step": Harmful(executed)}, newest / "state.pt")
    else:
        (newest / "state.pt").write_bytes(b"" if content == "empty" else b"PK of something else")
    digest = hashlib.sha256((newest / "state.pt").read_bytes()).hexdigest()
    (newest / "sha256").write_text(f"{digest}  state.pt\n")
    with pytest.raises(UserError, match=r"step00003/state\.pt: this checkpoint cannot be loaded: .*Remove ") as said:
        checkpoint.load_newest(tmp_path, {"model": torch.nn.Linear(8, 4)})
    assert "\n" not in str(said.value)
    assert not executed.exists()
    shutil.rmtree(newest)  # as the message says
    assert checkpoint.load_newest(tmp_path, {"model": torch.nn.Linear(8, 4)}) == {"step": 2}


def test_two_trainers_do_not_share_a_run_directory(made: tuple[Path, Path], tmp_path: Path) -> None:
    with (
        checkpoint.run_lock(tmp_path / "run"),
        pytest.raises(UserError, match=f"another process is training here .process {os.getpid()} on "),
        checkpoint.run_lock(tmp_path / "run"),
    ):
        pass
    # A run of other settings does not take the folder of a process that is alive either.
    run = train_small(small_study(), tmp_path / "trained", *made)
    other = small_study(training={"learning_rate": 5e-4})
    with checkpoint.run_lock(run), pytest.raises(UserError, match="another process is training here"):
        train_small(other, run, *made)
    assert (run / "metrics.jsonl").exists() and not list(run.glob("superseded-*"))
    with checkpoint.run_lock(tmp_path / "run"):  # the holder is gone
        pass


def test_a_batch_job_waits_until_its_predecessor_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    held, gone = threading.Event(), []

    def predecessor() -> None:
        with checkpoint.run_lock(tmp_path):
            held.set()
            time.sleep(0.7)
            gone.append(True)

    thread = threading.Thread(target=predecessor)
    thread.start()
    held.wait()
    with checkpoint.run_lock(tmp_path):
        assert gone
        monkeypatch.setattr(checkpoint, "WAIT_IN_JOBS", 0.2)
        with pytest.raises(UserError, match="another process is training here"), checkpoint.run_lock(tmp_path):
            pass
    thread.join()
