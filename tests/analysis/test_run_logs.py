"""Logs of every format give the same run; restarts, cut lines and wrong files are said."""

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policygrain.analysis.run_claims import Endpoint, Run
from policygrain.analysis.run_logs import read_runs
from policygrain.errors import UserError

from ..support.batches import few
from ..support.files import write_lines

LOGS = yaml.safe_load(Path(__file__).with_name("logs.yaml").read_text())
VALUES = {1: 0.1, 2: 0.4, 4: 0.3, 10: 0.5}
NAME = "critic/score/mean"


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    return str(write_lines(path, rows))


def points(run: Run) -> dict[float, float]:
    return dict(zip(run.steps, run.values, strict=True))


@pytest.mark.parametrize("name", LOGS["the_same_run"])
def test_every_format_gives_the_same_run(name, tmp_path):
    for file, content in LOGS["the_same_run"][name]["files"].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    (run,) = read_runs([f"{tmp_path}/{LOGS['the_same_run'][name]['read']}"], NAME)
    assert points(run) == VALUES and run.notes == () and run.seed is None


@pytest.mark.slow
def test_mlflow_itself_writes_what_is_read(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/real.db")
    run = client.create_run(client.create_experiment("e"), run_name="gspo")
    client.log_param(run.info.run_id, "seed", 3)
    gone = client.create_run(run.info.experiment_id, run_name="gspo gone")
    client.log_metric(gone.info.run_id, NAME, 9.0, step=1)
    client.delete_run(gone.info.run_id)
    for k, v in reversed(VALUES.items()):  # the database has them as they arrived
        client.log_metric(run.info.run_id, NAME, v, timestamp=1000 + k, step=k)
    (found,) = read_runs([f"{tmp_path}/real.db::gspo *"], NAME)
    assert found.seed == 3 and points(found) == VALUES


def test_the_database_of_trackio_is_read(tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)")
        rows = [("x", k, json.dumps({"r": v})) for k, v in VALUES.items()]
        connection.executemany("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", rows)
    (run,) = read_runs([f"{tmp_path}/t.db::x"], "r")
    assert points(run) == VALUES


@pytest.mark.parametrize(
    ("name", "seed"),
    [("seed3.jsonl", 3), ("gspo-Seed_12/log.jsonl", 12), ("seed1/a-seed=4.jsonl", 4), ("s3.jsonl", None)],
)
def test_a_seed_is_the_last_one_in_the_path(name, seed, tmp_path):
    (run,) = read_runs([lines(tmp_path / name, [{"step": 1, "r": 1}])], "r")
    assert run.seed == seed


@pytest.mark.parametrize(
    ("table", "place", "expected"),
    [
        ("run_id,seed,r\np,5,0.5\nq,6,0.6\n", "", [(5, [0.5]), (6, [0.6])]),
        ("Name,seed,r\nx,0,0.5\nx,1,0.6\n", "::x", [(0, [0.5]), (1, [0.6])]),  # of one name, told apart by their seeds
    ],
)
def test_columns_name_runs_and_seeds(table, place, expected, tmp_path):
    (tmp_path / "runs.csv").write_text(table)
    assert [(run.seed, [*run.values]) for run in read_runs([f"{tmp_path}/runs.csv{place}"], "r")] == expected


@few
@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_after_a_restart_what_was_logged_from_there_on_is_replaced(tmp_path_factory, starts):
    """Attempts begin at these steps and log three each; the model is as if there had been no others."""
    expected: dict[float, float] = {}
    rows: list[dict[str, Any]] = []
    for attempt, start in enumerate(starts):
        for step in range(start, start + 3):
            rows.append({"step": step, "r": attempt + step / 100})
            expected = {k: v for k, v in expected.items() if k < step} | {step: rows[-1]["r"]}
    try:
        (run,) = read_runs([lines(tmp_path_factory.mktemp("log") / "log.jsonl", rows)], "r")
    except UserError as error:
        assert "the steps go back" in str(error)
        return
    assert points(run) == expected
    replaced = len(rows) - len(expected)
    assert run.notes == () if not replaced else f"{replaced} of {len(rows)} values were logged again" in run.notes[0]


def test_a_last_line_that_is_cut_off_is_left_out_and_said(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"step": 1, "r": 2}\n{"step": 2, "r"')
    (tmp_path / "b.csv").write_text("step,x,r\n1,0,2\n2,0")
    for name, line in (("a.jsonl", 2), ("b.csv", 3)):
        (run,) = read_runs([str(tmp_path / name)], "r")
        note = f"{tmp_path / name}, line {line}: the last line is cut off and left out"
        assert [*run.values] == [2.0] and run.notes == (note,)


def test_nan_is_kept_for_the_endpoint_to_refuse(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"step": 1, "r": NaN}\n{"step": 2, "r": "Infinity"}\n')
    (run,) = read_runs([str(tmp_path / "a.jsonl")], "r")
    assert math.isnan(run.values[0]) and math.isinf(run.values[1])


# ---- what cannot be read --------------------------------------------------------------------------------------------

LONG_CELL = ["a.csv", f"step,r,text\n1,1,{'x' * 132_000}\n", "cannot be read as CSV: field larger"]
BACKWARDS = ["a.jsonl", "".join(f'{{"step": {k}, "r": 1}}\n' for k in range(20, 0, -1)), "the steps go back 19 times"]


@pytest.mark.parametrize(("name", "content", "says"), [*LOGS["wrong"], LONG_CELL, BACKWARDS])
def test_what_cannot_be_read_is_named(name, content, says, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=says) as raised:
        read_runs([str(tmp_path / name)], "r")
    assert str(tmp_path / name) in str(raised.value)


def test_steps_of_two_columns_are_not_mixed(tmp_path):
    path = lines(
        tmp_path / "[r].jsonl", [{"time": 0, "_step": 0}, {"step": 1, "_step": 9, "r": 1}, {"_step": 10, "r": 2}]
    )
    with pytest.raises(UserError, match=r"line 3: has no step 'step'. The row has '_step', 'r'"):
        read_runs([path], "r")
    assert [*read_runs([path], "r", step="_step")[0].steps] == [9, 10]


def test_what_is_not_there_is_named_and_a_glob_is_a_run_for_each_match(tmp_path):
    log = lines(tmp_path / "a.jsonl", [{"step": 1, "r": 1, "run": "x", "s": 1, "reward": 1}])
    cases: list[tuple[list[str], str, str | None, str]] = [
        (["nothing/*.jsonl"], "r", None, "no file or folder matches"),
        (["nothing.jsonl"], "r", None, "cannot be read: No such file"),
        ([log, log], "r", None, "given twice"),
        ([f"{log}::y*"], "r", None, r"no run is called 'y\*'. There are: 'x'"),
        ([log], "r", "t", r"has no step 't'. The row has 'step', 'r'"),
        ([log], "reword", None, r"'reword'.* Did you mean 'reward'"),
    ]
    for places, metric, step, says in cases:
        with pytest.raises(UserError, match=says):
            read_runs(places, metric, step)
    lines(tmp_path / "b.jsonl", [{"step": 1, "r": 1}])
    assert [Path(run.name).name[:7] for run in read_runs([f"{tmp_path}/*.jsonl"], "r")] == ["a.jsonl", "b.jsonl"]
    with pytest.raises(UserError, match=r"has several logs \(a.jsonl, b.jsonl\); give the path of one"):
        read_runs([str(tmp_path)], "r")


@pytest.mark.parametrize("case", LOGS["reported"], ids=lambda case: case["case"])
def test_reported_logs(case, tmp_path):
    (tmp_path / case["file"]).write_text(case["lines"])
    endpoint = Endpoint(case.get("last", 1), case.get("area", False), case.get("until"))

    def mean() -> float:
        (run,) = read_runs([str(tmp_path / case["file"])], case["metric"])
        return endpoint.of(run)[0]

    if "says" in case:
        with pytest.raises(UserError, match=case["says"]):
            mean()
    else:
        assert mean() == pytest.approx(case["mean"])
