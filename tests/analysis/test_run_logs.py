"""Logs of every format give the same run; restarts, cut lines and wrong files are said."""

from __future__ import annotations

import json
import math
import sqlite3
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.analysis.run_claims import Endpoint
from policygrain.analysis.run_logs import read_runs
from policygrain.errors import UserError

from ..support.batches import few

VALUES = {1: 0.1, 2: 0.4, 4: 0.3, 10: 0.5}
NAME = "critic/score/mean"


def lines(path: Path, rows: list[Any]) -> str:
    path.write_text(json_lines(rows))
    return str(path)


def json_lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_of_csv(*rows: Sequence[Any]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def checkpoint(last: int) -> str:
    history = [{"step": k, NAME: v, "loss": 1.0} for k, v in VALUES.items() if k <= last]
    return json.dumps({"log_history": [*history, {"step": last, "eval_loss": 2.0}]})


POINTS = list(VALUES.items())
CHART = ["Step", f"one - {NAME}", f"one - {NAME}__MIN", f"one - {NAME}__MAX", f"two - {NAME}"]
# Format → what is read, and the files in the folder.
FORMATS: dict[str, tuple[str, dict[str, str]]] = {
    "trl": (
        "",
        {f"checkpoint-{last}/trainer_state.json": checkpoint(last) for last in (2, 10)}
        | {"checkpoint-best/trainer_state.json": checkpoint(2)},
    ),
    "verl": ("m.jsonl", {"m.jsonl": json_lines([{"step": k, "data": {NAME: v, "n": 1}} for k, v in POINTS])}),
    "plain": (
        "log.jsonl",
        {
            "log.jsonl": json_lines([{"step": 0, "other": 1}])
            + json_lines([{"step": k, NAME: v} if k != 2 else {NAME: v, "step": k} for k, v in POINTS])
            + json_lines([{"step": 10, "time": 3, NAME: None}])
        },
    ),
    "columns": ("x.csv", {"x.csv": rows_of_csv(["step", NAME, "x"], *([k, v, ""] for k, v in POINTS), [11, "", 3])}),
    "tensorboard": ("x.csv", {"x.csv": rows_of_csv(["Wall time", "Step", NAME], *([1.5, k, v] for k, v in POINTS))}),
    "wandb_chart": ("w.csv::one", {"w.csv": rows_of_csv(CHART, *([k, v, 0, 1, 9] for k, v in POINTS))}),
    "wandb_history": ("h.json", {"h.json": json.dumps([{"_step": k, NAME: v} for k, v in POINTS])}),
    "wandb_columns": ("h.json", {"h.json": json.dumps({"_step": [*VALUES], NAME: dict(enumerate(VALUES.values()))})}),
    "long_table": (
        "x.csv::a",
        {"x.csv": rows_of_csv(["run", "step", NAME], *([r, k, v + (r == "b")] for k, v in POINTS for r in "ab"))},
    ),
    "mlflow_folder": ("", {"meta.yaml": "", f"metrics/{NAME}": "".join(f"{1000 + k} {v} {k}\n" for k, v in POINTS)}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_run(name: str, tmp_path: Path) -> None:
    place, files = FORMATS[name]
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    (run,) = read_runs([f"{tmp_path}/{place}"], NAME)
    assert dict(zip(run.steps, run.values, strict=True)) == VALUES and run.notes == () and run.seed is None


@pytest.mark.slow
def test_mlflow_itself_writes_what_is_read(tmp_path: Path) -> None:
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
    assert found.seed == 3 and [*found.values] == [*VALUES.values()]


@pytest.mark.parametrize(
    ("name", "seed"),
    [("seed3.jsonl", 3), ("gspo-Seed_12/log.jsonl", 12), ("seed1/a-seed=4.jsonl", 4), ("s3.jsonl", None)],
)
def test_a_seed_is_the_last_one_in_the_path(name: str, seed: int | None, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (run,) = read_runs([lines(tmp_path / name, [{"step": 1, "r": 1}])], "r")
    assert run.seed == seed


def test_a_glob_is_a_run_for_each_match_and_columns_name_runs_and_seeds(tmp_path: Path) -> None:
    for name in ("x", "y"):
        lines(tmp_path / f"{name}.jsonl", [{"step": 1, "r": 1}])
    assert [Path(run.name).name for run in read_runs([f"{tmp_path}/*.jsonl"], "r")] == ["x.jsonl", "y.jsonl"]
    (tmp_path / "runs.csv").write_text("run_id,seed,metrics.r\np,5,0.5\nq,6,0.6\n")
    runs = read_runs([f"{tmp_path}/runs.csv"], "metrics.r")
    assert [(run.seed, [*run.values]) for run in runs] == [(5, [0.5]), (6, [0.6])]


@few
@given(st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_after_a_restart_what_was_logged_from_there_on_is_replaced(tmp_path_factory: Any, starts: list[int]) -> None:
    """Attempts begin at these steps and log three each; the model is as if there had been no others."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    expected: dict[int, float] = {}
    rows = []
    for attempt, start in enumerate(starts):
        for step in range(start, start + 3):
            rows.append({"step": step, "r": attempt + step / 100})
            expected = {k: v for k, v in expected.items() if k < step} | {step: rows[-1]["r"]}
    lines(path, rows)
    try:
        (run,) = read_runs([str(path)], "r")
    except UserError as error:
        assert "the steps go back" in str(error)
        return
    assert dict(zip(run.steps, run.values, strict=True)) == expected
    replaced = len(rows) - len(expected)
    assert run.notes == () if not replaced else f"{replaced} of {len(rows)} values were logged again" in run.notes[0]


def test_steps_in_reverse_order_are_no_restarts(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", [{"step": k, "r": 1} for k in range(20, 0, -1)])
    with pytest.raises(UserError, match=r"the steps go back 19 times. Is the log sorted by step"):
        read_runs([path], "r")


def test_a_last_line_that_is_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": 1, "r": 2}\n{"step": 2, "r"')
    (tmp_path / "b.csv").write_text("step,x,r\n1,0,2\n2,0")
    for name, line in (("a.jsonl", 2), ("b.csv", 3)):
        (run,) = read_runs([str(tmp_path / name)], "r")
        assert [*run.values] == [2.0] and run.notes == (
            f"{tmp_path / name}, line {line}: the last line is cut off and left out",
        )


def test_steps_of_two_columns_are_not_mixed(tmp_path: Path) -> None:
    rows = [{"time": 0, "_step": 0}, {"step": 1, "_step": 9, "r": 1}, {"_step": 10, "r": 2}]
    path = lines(tmp_path / "[r].jsonl", rows)
    with pytest.raises(UserError, match=r"line 3: has no step 'step'. The row has '_step', 'r'"):
        read_runs([path], "r")
    assert [*read_runs([path], "r", step="_step")[0].steps] == [9, 10]


def test_nan_is_kept_for_the_endpoint_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": 1, "r": NaN}\n{"step": 2, "r": "Infinity"}\n')
    (run,) = read_runs([str(tmp_path / "a.jsonl")], "r")
    assert math.isnan(run.values[0]) and math.isinf(run.values[1])


WRONG: list[tuple[str, str, str]] = [
    ("a.jsonl", '{"step": 1, "r": 2}\n{"st\n{"step": 2, "r": 2}\n', "line 2: not JSON"),
    ("a.jsonl", '{"step": 1, "reward": 2}\n', "no metric 'r'.* The run has 'step', 'reward'"),
    ("a.jsonl", '{"step": 1, "r": "high"}\n', "line 1: r: 'high' is not a number"),
    ("a.jsonl", '{"step": 1, "r": true}\n', "True is not a number"),
    ("a.jsonl", '{"r": 1}\n{"r": 2}\n', "no step; name its column by --step. The row has 'r'"),
    ("a.jsonl", '{"step": "x", "r": 2}\n', "step: 'x' is not a number"),
    ("a.jsonl", "[1]\n", "expected a JSON object, got list"),
    ("a.jsonl", "", "empty"),
    ("a.csv", "step,r\n1,2,3\n2,2\n", "line 2: 3 cells under 2 columns"),
    ("a.csv", "step;r\n1;0,5\n", "separated by ';'; expected commas and decimal points"),
    ("a.csv", "step,r,seed\n1,1,5\n1,2,6\n", r"seed 6 after seed 5 in one run.* needs a column .*: run, run_id, "),
    ("a.csv", "step,r,seed\n1,1,nan\n", "'nan' is not a seed"),
    ("a.csv", f"step,r,text\n1,1,{'x' * 132_000}\n", "cannot be read as CSV: field larger"),
    ("a.json", '{"log_history": [{"step": 1', "not JSON .* cut off"),
    ("a.json", "3", "expected `log_history`"),
    ("a.json", '{"step": [1, 2], "r": [1]}', "columns have different lengths"),
    ("a.db", "not a database, and long enough to be read as one", "cannot be read as a database of MLflow or Trackio"),
]


@pytest.mark.parametrize(("name", "content", "says"), WRONG, ids=[says[:25] for _, _, says in WRONG])
def test_what_cannot_be_read_is_named(name: str, content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=says) as raised:
        read_runs([str(tmp_path / name)], "r")
    assert str(tmp_path / name) in str(raised.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    log = lines(tmp_path / "a.jsonl", [{"step": 1, "r": 1, "run": "x", "s": 1}])
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        (["nothing/*.jsonl"], {}, "no file or folder matches"),
        (["nothing.jsonl"], {}, "cannot be read: No such file"),
        ([log, log], {}, "given twice"),
        ([f"{log}::y*"], {}, r"no run is called 'y\*'. There are: 'x'"),
        ([log], {"step": "t"}, r"has no step 't'. The row has 'step', 'r'"),
    ]
    for places, options, says in cases:
        with pytest.raises(UserError, match=says):
            read_runs(places, "r", **options)
    (tmp_path / "b.jsonl").touch()
    with pytest.raises(UserError, match=r"has several logs \(a.jsonl, b.jsonl\); give the path of one"):
        read_runs([str(tmp_path)], "r")
    with pytest.raises(UserError, match=r"'reword'.* Did you mean 'reward'"):
        read_runs([lines(tmp_path / "c.jsonl", [{"step": 1, "reward": 1}])], "reword")


def test_memory_is_sixteen_bytes_a_value(tmp_path: Path) -> None:
    """20,000 lines of 200 bytes: a list of their objects would need 8 MB."""
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"step": k, "r": k / 7, "text": "x" * 170}) + "\n" for k in range(20_000)))
    tracemalloc.start()
    (run,) = read_runs([str(path)], "r")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.values) == 20_000 and peak < 2e6


# Logs like those in public bug reports: the mean of the endpoint, or the error.
REPORTED = json.loads(Path(__file__).with_name("reported_logs.json").read_text())


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case["case"])
def test_reported_logs(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / case["file"]).write_text("\n".join([*case["lines"], ""]))
    endpoint = Endpoint(case.get("last", 1), case.get("area", False), case.get("until"))

    def mean() -> float:
        (run,) = read_runs([str(tmp_path / case["file"])], case["metric"])
        return endpoint.of(run)[0]

    if "says" in case:
        with pytest.raises(UserError, match=case["says"]):
            mean()
    else:
        assert mean() == pytest.approx(case["mean"])


def test_runs_that_share_a_name_are_told_apart_by_their_seeds(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("Name,seed,r\nx,0,0.5\nx,1,0.6\n")
    runs = read_runs([f"{tmp_path}/runs.csv::x"], "r")
    assert [(run.seed, [*run.values]) for run in runs] == [(0, [0.5]), (1, [0.6])]


def test_the_database_of_trackio_is_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)")
        rows = [("x", k, json.dumps({"r": v})) for k, v in VALUES.items()]
        connection.executemany("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", rows)
    (run,) = read_runs([f"{tmp_path}/t.db::x"], "r")
    assert dict(zip(run.steps, run.values, strict=True)) == VALUES
