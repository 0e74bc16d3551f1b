"""What a resumed run keeps of its logs of metrics and timings, and refuses; what supersedes a run in its folder."""

import itertools
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.errors import UserError
from policygrain.paths import DataFolder, RunFolder
from policygrain.records import write_record
from policygrain.results import run_metrics
from policygrain.study import Study
from policygrain.study.runs import run_matrix
from policygrain.train.records import MetricsLog
from policygrain.trainers.run import claim, run_config

from ..support.small import assert_same_end, small_study, train_small

LINES = [f'{{"step": {step}, "x": {step / 4}}}\n'.encode() for step in range(4)]
KEPT = LINES[:3]  # with a checkpoint of step 3
OTHERS = [b"", b"\n", b"7\n", b"[]\n", b"{}\n", b"[" * 100_000 + b"\n", b'{"step": 1, "x": "\xff"}\n', LINES[2][:9]]
OTHERS += ['{"step": 1}'.encode("utf-16-le") + b"\n", *LINES]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
@given(right=st.integers(0, 3), rest=st.lists(st.sampled_from(OTHERS), max_size=4))
def test_lines_before_the_checkpoint_are_kept_and_one_that_is_lost_is_named(name, right, rest):
    """A file of some lines as they were and other lines; what follows the checkpoint is replaced whatever it is."""
    parts = [part for part in [*LINES[:right], *rest] if part]
    begin = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(parts, KEPT, strict=False))
    count, content = len([*begin]), b"".join(parts)
    with TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        for path in (run.metrics, run.timings):
            path.write_bytes(b"".join(LINES))
        (run.path / name).write_bytes(content)
        if count == 3:
            MetricsLog(run, resume_at=3)
            assert run.metrics.read_bytes() == run.timings.read_bytes() == b"".join(KEPT)
            (run.path / name).write_bytes(b"".join(KEPT).rstrip(b"\n"))
            MetricsLog(run, resume_at=3)
            assert (run.path / name).read_bytes() == b"".join(KEPT), "also where the last line lacked its end"
        else:
            said = rf"{name}: line {count + 1} is not step {count}, .*checkpoint of step 3"
            with pytest.raises(UserError, match=said):
                MetricsLog(run, resume_at=3)
            assert (run.path / name).read_bytes() == content, "nothing is changed"
            (run.path / name).unlink()
            with pytest.raises(UserError, match=rf"{name}: line 1 is not step 0"):
                MetricsLog(run, resume_at=3)
        MetricsLog(run, resume_at=0)
        assert run.metrics.read_bytes() == run.timings.read_bytes() == b"", "without a checkpoint they begin anew"


def test_a_run_whose_lines_were_lost_is_resumed_when_they_are_back(made, tmp_path, monkeypatch):
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


def test_numbers_that_json_lacks_are_null_and_a_log_that_cannot_be_written_is_one_message(tmp_path):
    run = RunFolder(tmp_path)
    log = MetricsLog(run, resume_at=0)
    log.metrics({"step": 0, "loss": float("nan"), "ratio_max": float("inf"), "entropy": 0.5})
    log.timings({"step": 0, "total_seconds": 1.0})
    log.flush()
    assert run_metrics(run) == [{"step": 0, "loss": None, "ratio_max": None, "entropy": 0.5}]
    assert json.loads(run.timings.read_text()) == {"step": 0, "total_seconds": 1.0}
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "timings.jsonl"}
    run.metrics.unlink()
    run.metrics.mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be written: .*it resumes"):
        log.metrics({"step": 0})


@pytest.mark.parametrize("what", ["nothing", "train", "validation", "initial model", "a setting"])
def test_a_run_is_superseded_by_other_settings_and_inputs(what, made, tmp_path):
    def config(study: Study, data: Path, start: Path) -> Any:
        return run_config(study, next(iter(run_matrix(study).arms.values())), 1, str(start), DataFolder(data))

    study, run = small_study(), RunFolder(tmp_path / "run")
    write_record(run.config, config(study, *made))
    run.metrics.write_text("steps")
    data, start = (Path(shutil.copytree(path, tmp_path / path.name)) for path in made)
    if what == "initial model":
        (start / "start.json").unlink()
        (start / "generation_config.json").write_text("{}")
    elif what == "a setting":
        study = small_study(training={"group": 8})
    elif what != "nothing":
        (data / f"{what}.jsonl").write_text("")
    claim(run, config(study, data, start))
    assert run.metrics.exists() == (what == "nothing")
    assert len([*run.path.glob("superseded-*")]) == (what != "nothing")
