"""What a resumed run keeps of its logs of metrics and timings, and refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.paths import RunFolder
from policygrain.results import run_metrics
from policygrain.train.records import MetricsLog

from ..support.files import snapshot
from ..support.small import assert_same_end, small_study, train_small

BOTH = pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
LINES = [f'{{"step": {step}, "x": {step / 4}}}\n'.encode() for step in range(4)]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Both files with a line for each of four steps."""
    for name in ("metrics.jsonl", "timings.jsonl"):
        (tmp_path / name).write_bytes(b"".join(LINES))
    return RunFolder(tmp_path)


# What becomes of the lines, and the number of the first line that is wrong.
BROKEN: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "a step short": (lambda lines: lines[:2], 3),
    "empty": (lambda lines: [], 1),
    "with a hole": (lambda lines: [lines[0], *lines[2:]], 2),
    "a step doubled": (lambda lines: [lines[0], *lines], 2),
    "out of order": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    "not UTF-8": (lambda lines: [lines[0], b'{"step": 1, "x": "\xff"}\n', *lines[2:]], 2),
    "UTF-16": (lambda lines: [lines[0], '{"step": 1}'.encode("utf-16-le") + b"\n", *lines[2:]], 2),
    "a number": (lambda lines: [*lines[:2], b"7\n", *lines[3:]], 3),
    "a list": (lambda lines: [b"[]\n", *lines[1:]], 1),
    "no step": (lambda lines: [b"{}\n", *lines[1:]], 1),
    "an empty line": (lambda lines: [b"\n", *lines], 1),
    "nested too deeply": (lambda lines: [b"[" * 100_000 + b"\n", *lines[1:]], 1),
    "cut in a line": (lambda lines: [*lines[:2], lines[2][:9]], 3),
}


@BOTH
@pytest.mark.parametrize("how", [*BROKEN, "missing"])
def test_lost_lines_are_named_and_nothing_is_changed(how: str, name: str, run: RunFolder) -> None:
    path, number = run.path / name, 1
    if how == "missing":
        path.unlink()
    else:
        broken, number = BROKEN[how]
        path.write_bytes(b"".join(broken(LINES)))
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(UserError, match=rf"{name}: line {number} is not step {number - 1}, .*checkpoint of step 3"):
        MetricsLog(run, resume_at=3)
    assert (path.read_bytes() if path.exists() else None) == before


@BOTH
@pytest.mark.parametrize("after", [b"", b'{"step": 3, "sampled_acc', b"\xff\x00garbage\n{}\n", b"7\n", None])
def test_what_follows_the_checkpoint_is_replaced_whatever_it_is(after: bytes | None, name: str, run: RunFolder) -> None:
    """None: also the last line that is kept lacks its end."""
    kept = b"".join(LINES[:3])
    (run.path / name).write_bytes(kept.rstrip(b"\n") if after is None else kept + after)
    MetricsLog(run, resume_at=3)
    assert run.metrics.read_bytes() == run.timings.read_bytes() == kept
    (run.path / name).write_bytes(after or b"\xff")
    MetricsLog(run, resume_at=0)
    assert run.metrics.read_bytes() == run.timings.read_bytes() == b"", "without a checkpoint they begin anew"


def test_a_run_whose_lines_were_lost_is_resumed_when_they_are_back(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its final model was written; its newest checkpoint is of step 3."""
    monkeypatch.setattr("policygrain.trainers.run.remove_old", lambda *_: None)
    whole = train_small(small_study(), tmp_path / "whole", *made)
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "summary.json").unlink()
    shutil.rmtree(run / "model")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:2]))
    with pytest.raises(UserError, match=r"run/metrics\.jsonl: line 3 is not step 2, .*checkpoint of step 3"):
        train_small(small_study(), run, *made)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + b'{"step": 3, "sampled_acc')
    assert_same_end(train_small(small_study(), run, *made), whole)
    assert [json.loads(line)["step"] for line in (run / "timings.jsonl").open()] == [0, 1, 2, 3]


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    log = MetricsLog(run, resume_at=0)
    log.metrics({"step": 0, "loss": float("nan"), "ratio_max": float("inf"), "entropy": 0.5})
    log.timings({"step": 0, "total_seconds": 1.0})
    log.flush()
    assert run_metrics(run) == [{"step": 0, "loss": None, "ratio_max": None, "entropy": 0.5}]
    assert json.loads(run.timings.read_text()) == {"step": 0, "total_seconds": 1.0}
    assert set(snapshot(tmp_path)) == {f"{tmp_path.name}/{n}" for n in ("metrics.jsonl", "timings.jsonl")}


def test_a_log_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    log = MetricsLog(run, resume_at=0)
    run.metrics.unlink()
    run.metrics.mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: .*it resumes"):
        log.metrics({"step": 0})
