"""Checkpoints that are complete or passed over, the lock on a run folder, and what a resumed run keeps of its logs."""

import hashlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.paths import DataFolder, RunFolder
from policygrain.results import run_metrics
from policygrain.study.runs import run_matrix
from policygrain.train import checkpoint
from policygrain.train.checkpoint import append, flush_logs, resume_logs
from policygrain.trainers.run import run_config

from ..support.small import small_study, train_small


def two_checkpoints(folder: Path) -> None:
    """Three are saved, of which two are kept; weights are the number of the step."""
    part = torch.nn.Linear(8, 4)
    with checkpoint.Writer(folder) as writer:
        for step in (2, 99999, 100000):  # names with more digits come later
            torch.nn.init.constant_(part.weight, step)
            writer.save(step, {"model": part}, {"step": step})
            torch.nn.init.constant_(part.weight, -1)  # training goes on while a checkpoint is written


def loaded(folder: Path) -> dict[str, Any] | None:
    """The counters of the newest checkpoint, whose weights are loaded with them."""
    _, state = checkpoint.load_newest(folder)
    assert state is None or state.pop("model")["weight"].eq(state["step"]).all()
    return state


def test_a_torn_checkpoint_is_passed_over_with_a_message(tmp_path, capfd):
    """Cut or changed at any byte of any of its files, or without one of them. The two newest are kept."""
    (tmp_path / ".step").mkdir()  # what a killed process leaves
    two_checkpoints(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step100000", "step99999"]
    newest = tmp_path / "step100000"
    for name in ("state.pt", "sha256"):
        content = (newest / name).read_bytes()
        places = sorted({*range(0, len(content), max(1, len(content) // 40)), len(content) - 1})
        changed = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in places]
        for torn in (*(content[:i] for i in places), *changed, None):
            (newest / name).unlink() if torn is None else (newest / name).write_bytes(torn)
            assert loaded(tmp_path) == {"step": 99999}
            assert "step100000: skipped" in "".join(capfd.readouterr())
        (newest / name).write_bytes(content)
    assert loaded(tmp_path) == {"step": 100000}
    shutil.rmtree(tmp_path / "step99999")
    (newest / "state.pt").unlink()
    assert loaded(tmp_path) is None


def test_an_error_of_writing_is_raised_by_the_next_call(tmp_path):
    """The folder of checkpoints cannot be made: a file is in its place."""
    (tmp_path / "file").write_text("")
    parts, writer = {"model": torch.nn.Linear(8, 4)}, checkpoint.Writer(tmp_path / "file" / "checkpoints")
    writer.save(1, parts, {"step": 1})
    with pytest.raises(UserError, match="step00001: the checkpoint cannot be written"):
        writer.save(2, parts, {"step": 2})
    with pytest.raises(UserError, match="step00003: the checkpoint cannot be written"), writer:
        writer.save(3, parts, {"step": 3})


def test_a_state_that_has_no_room_in_memory_twice_is_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_available_memory", lambda: 0)
    checkpoint.Writer(tmp_path).save(1, {"model": torch.nn.Linear(8, 4)}, {"step": 1})
    assert checkpoint.load_newest(tmp_path)[0] == tmp_path / "step00001"


def test_tied_weights_are_saved_once(tmp_path):
    one, two = torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False)
    sizes = []
    for step in range(2):
        with checkpoint.Writer(tmp_path) as writer:
            writer.save(step, {"model": torch.nn.ModuleList([one, two])}, {})
        sizes.append((tmp_path / f"step{step:05d}" / "state.pt").stat().st_size)
        two.weight = one.weight
    assert sizes[0] - sizes[1] >= 4 * 64 * 64


class Harmful:
    """Unpickling it writes a file into the working directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("content", [None, b"", b"PK of something else"], ids=["forbidden", "empty", "no archive"])
def test_a_checkpoint_that_may_not_be_loaded_is_one_message_and_runs_nothing(content, tmp_path, monkeypatch):
    """Its checksums are right: somebody else wrote it."""
    monkeypatch.chdir(tmp_path)
    two_checkpoints(tmp_path)
    newest = tmp_path / "step100000"
    torch.save({"step": Harmful()}, newest / "state.pt")
    if content is not None:
        (newest / "state.pt").write_bytes(content)
    digest = hashlib.sha256((newest / "state.pt").read_bytes()).hexdigest()
    (newest / "sha256").write_text(f"{digest}  state.pt\n")
    with pytest.raises(UserError, match=r"^.*step100000/state\.pt: this checkpoint cannot be loaded: .*Remove .*$"):
        loaded(tmp_path)
    assert not Path("executed").exists()
    shutil.rmtree(newest)  # as the message says
    assert loaded(tmp_path) == {"step": 99999}


def test_two_trainers_do_not_share_a_run_directory(made, tmp_path):
    refused = pytest.raises(UserError, match=rf"another process is training here.* \(process {os.getpid()} on ")
    with checkpoint.run_lock(tmp_path / "run"), refused, checkpoint.run_lock(tmp_path / "run"):
        pass
    with checkpoint.run_lock(tmp_path / "run"):  # the holder is gone
        pass
    # A run of other settings does not take the folder of a process that is alive either.
    run = train_small(small_study(), tmp_path / "trained", *made)
    with checkpoint.run_lock(run), refused:
        train_small(small_study(training={"learning_rate": 5e-4}), run, *made)
    assert (run / "metrics.jsonl").exists() and not list(run.glob("superseded-*"))


def test_a_batch_job_waits_until_its_predecessor_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    predecessor: Any = checkpoint.run_lock(tmp_path)
    threading.Timer(0.7, predecessor.close).start()
    with checkpoint.run_lock(tmp_path):
        monkeypatch.setattr(checkpoint, "WAIT_IN_JOBS", 0.2)
        with pytest.raises(UserError, match="another process is training here"), checkpoint.run_lock(tmp_path):
            pass


LINES = [f'{{"step": {step}, "x": {step / 4}}}\n'.encode() for step in range(4)]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
@pytest.mark.parametrize("line", [b"7\n", b"[]\n", b"{}\n", b"[" * 100_000, b'{"step": 1, "x": "\xff"}\n', LINES[2]])
def test_lines_before_the_checkpoint_are_kept_and_a_lost_one_is_an_error(line, name, tmp_path):
    run = RunFolder(tmp_path)
    for path in (run.metrics, run.timings):
        path.write_bytes(b"".join(LINES).rstrip(b"\n"))
    resume_logs(run, 3)
    assert run.metrics.read_bytes() == run.timings.read_bytes() == b"".join(LINES[:3])
    for content in (LINES[0] + line + LINES[2], LINES[0], b"", None):
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}[:,] .*Remove the folder"):
            resume_logs(run, 3)
        assert content is None or (tmp_path / name).read_bytes() == content, "nothing is changed"
    resume_logs(run, 0)
    assert run.metrics.read_bytes() == run.timings.read_bytes() == b"", "without a checkpoint they begin anew"


def test_numbers_that_json_lacks_are_null_and_a_log_that_cannot_be_written_is_one_message(tmp_path):
    run = RunFolder(tmp_path)
    resume_logs(run, 0)
    append(run.metrics, {"step": 0, "loss": float("nan"), "ratio_max": float("inf"), "entropy": 0.5})
    flush_logs(run)
    assert run_metrics(run) == [{"step": 0, "loss": None, "ratio_max": None, "entropy": 0.5}]
    run.metrics.unlink()
    run.metrics.mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: .*it resumes"):
        append(run.metrics, {"step": 0})


def test_a_run_has_another_key_with_other_inputs(made, tmp_path):
    study, keys = small_study(), set()
    data, start = (Path(shutil.copytree(path, tmp_path / path.name)) for path in made)
    (start / "start.json").unlink()
    for changed in (None, data / "train.jsonl", data / "validation.jsonl", start / "generation_config.json"):
        if changed is not None:
            changed.write_text("{}")
        keys.add(run_config(study, next(iter(run_matrix(study).arms.values())), 1, str(start), DataFolder(data)).key)
    assert len(keys) == 4
