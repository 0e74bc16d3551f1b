"""metrics.jsonl and timings.jsonl: what a resumed run keeps of them, and refuses to continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_metrics, run_timings
from policygrain.train.records import MetricsLog

from ..support.files import snapshot
from ..support.small import assert_same_end, small_study, train_small

BOTH = pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])


@pytest.fixture(scope="module")
def whole(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps that has ended; its newest checkpoint is of step 3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policygrain.engines.run.remove_old", lambda *_: None)
        return train_small(small_study(), tmp_path_factory.mktemp("whole") / "run", *made)


@pytest.fixture
def killed(whole: Path, tmp_path: Path) -> Path:
    """The same run as if it had been killed before its final model was written."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "summary.json").unlink()
    shutil.rmtree(run / "model")
    assert max(path.name for path in (run / "checkpoints").iterdir()) == "step00003"
    return run


# What becomes of the lines, and the number of the first line that is wrong.
BROKEN = {
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
@pytest.mark.parametrize("how", BROKEN)
def test_a_run_whose_lines_were_lost_is_not_resumed(
    how: str, name: str, made: tuple[Path, Path], whole: Path, killed: Path
) -> None:
    broken, number = BROKEN[how]
    (killed / name).write_bytes(b"".join(broken((killed / name).read_bytes().splitlines(keepends=True))))
    with pytest.raises(UserError, match=rf"run/{name}: line {number} is not step {number - 1}, .*checkpoint of step 3"):
        train_small(small_study(), killed, *made)
    # Nothing is lost by the attempt: with the right lines the run is resumed.
    shutil.copy(whole / name, killed / name)
    assert_same_end(train_small(small_study(), killed, *made), whole)


def test_a_missing_file_is_refused_too(made: tuple[Path, Path], killed: Path) -> None:
    (killed / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1 is not step 0"):
        train_small(small_study(), killed, *made)


@BOTH
@pytest.mark.parametrize("after", [b"", b'{"step": 3, "sampled_acc', b"\xff\x00garbage\n{}\n", b"7\n"])
def test_what_follows_the_checkpoint_is_replaced_whatever_it_is(
    after: bytes, name: str, made: tuple[Path, Path], whole: Path, killed: Path
) -> None:
    lines = (killed / name).read_bytes().splitlines(keepends=True)
    (killed / name).write_bytes(b"".join(lines[:3]) + after)
    assert_same_end(train_small(small_study(), killed, *made), whole)
    assert [row["step"] for row in run_timings(RunFolder(killed))] == [0, 1, 2, 3]


@BOTH
def test_a_last_kept_line_without_its_end_is_not_joined_with_the_next(
    name: str, made: tuple[Path, Path], whole: Path, killed: Path
) -> None:
    lines = (killed / name).read_bytes().splitlines(keepends=True)
    (killed / name).write_bytes(b"".join(lines[:3]).rstrip(b"\n"))
    assert_same_end(train_small(small_study(), killed, *made), whole)
    assert len(run_timings(RunFolder(killed))) == 4


def test_a_run_without_a_checkpoint_begins_with_empty_files(made: tuple[Path, Path], whole: Path, killed: Path) -> None:
    shutil.rmtree(killed / "checkpoints")
    (killed / "metrics.jsonl").write_bytes(b"\xff")
    assert_same_end(train_small(small_study(), killed, *made), whole)


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
