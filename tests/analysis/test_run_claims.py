"""Logs of every format give the same run; verdicts on runs, with their error rates."""

import json
import math
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from policygrain.analysis.run_claims import Endpoint, Run, RunClaim, decide_runs
from policygrain.analysis.run_logs import read_runs, steps_of_log
from policygrain.analysis.statistics import seeds_to_show, student, unpaired
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


@pytest.fixture(scope="module", params=["file", "sqlite"])
def store(request, tmp_path_factory):
    """A store by MLflow itself: two seeds whose values arrived backwards, a deleted run, and one without the metric."""
    mlflow = pytest.importorskip("mlflow")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    folder = tmp_path_factory.mktemp("store")
    client = mlflow.MlflowClient(str(folder) if request.param == "file" else f"sqlite:///{folder}/real.db")
    experiment = client.create_experiment("e")
    for seed in (3, 4):
        run = client.create_run(experiment, run_name="gspo").info.run_id
        client.log_param(run, "seed", seed)
        for k, v in reversed(VALUES.items()):
            client.log_metric(run, NAME, v, timestamp=1000 + k, step=k)
    client.log_metric(client.create_run(experiment, run_name="other").info.run_id, "loss", 1.0)
    gone = client.create_run(experiment, run_name="gspo gone").info.run_id
    client.log_metric(gone, NAME, 9.0, step=1)
    client.delete_run(gone)
    if request.param == "file":
        return str(folder), f"{folder}/{experiment}"
    return f"{folder}/real.db", f"sqlite:///{folder}/real.db"


@pytest.mark.slow
def test_mlflow_itself_writes_what_is_read(store):
    for place in store:
        found = sorted(read_runs([f"{place}::e/gspo*"], NAME), key=lambda run: run.seed or 0)
        assert [run.seed for run in found] == [3, 4] and all(points(run) == VALUES for run in found)
    with pytest.raises(UserError, match=r"e/other \w+: has no metric .* The run has loss"):
        read_runs([store[0]], NAME)
    if Path(store[0]).is_dir():
        runs = read_runs([str(path.parents[1]) for path in Path(store[1]).glob("*/params/seed")], NAME)
        assert {run.seed for run in runs} == {3, 4} and all(points(run) == VALUES for run in runs)


def test_an_address_that_does_not_answer_is_named_without_its_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UserError, match=r"^http://127.0.0.1:9: MLflow does not answer") as raised:
        read_runs(["http://me:secret@127.0.0.1:9::a"], "r")
    assert "secret" not in str(raised.value)


def test_event_files_of_tensorboard_are_read_whole(tmp_path):
    """Also where training was resumed from step 2, which began another file."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for seed in (0, 1):
        for attempt, values in enumerate([{1: 0.1, 2: 9.0, 4: 9.0}, {k: v for k, v in VALUES.items() if k > 1}]):
            with SummaryWriter(tmp_path / f"seed{seed}", filename_suffix=f".{attempt}") as writer:
                for k, v in values.items():
                    writer.add_scalar(NAME, v, k)
        with SummaryWriter(tmp_path / f"seed{seed}" / "hyperparameters") as writer:
            writer.add_scalar("lr", 1, 1)
    found = read_runs([str(tmp_path)], NAME)
    assert [run.seed for run in found] == [0, 1] and all(points(run) == pytest.approx(VALUES) for run in found)
    assert "2 of 6 values were logged again (restarts: 1" in found[0].notes[0]
    with pytest.raises(UserError, match=r"seed0: has no metric 'score'.* The run has critic/score/mean"):
        read_runs([f"{tmp_path}/seed*"], "score")


def test_event_files_without_their_package_name_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    (tmp_path / "events.out.tfevents.1.host").touch()
    with pytest.raises(UserError, match="pip install tensorboard"):
        read_runs([str(tmp_path)], "r")


def test_the_database_of_trackio_is_read(tmp_path):
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INTEGER, metrics TEXT)")
        rows = [("x", k, json.dumps({"r": v})) for k, v in VALUES.items()]
        connection.executemany("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", rows)
    (run,) = read_runs([f"{tmp_path}/t.db::x"], "r")
    assert points(run) == VALUES


@pytest.mark.parametrize(("name", "content", "place", "expected", "note"), [(*run, None)[:5] for run in LOGS["runs"]])
def test_seeds_values_and_notes_of_the_runs_in_a_log(name, content, place, expected, note, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    found = read_runs([f"{tmp_path / name}{place}"], "r")
    assert [[run.seed, [*run.values]] for run in found] == expected
    assert found[0].notes == ((f"{tmp_path / name}, {note}",) if note else ())


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
    rows = [{"time": 0, "_step": 0}, {"step": 1, "_step": 9, "r": 1}, {"_step": 10, "r": 2}]
    path = lines(tmp_path / "[r].jsonl", rows)
    with pytest.raises(UserError, match=r"line 3: has no step 'step'. The row has _step, r"):
        read_runs([path], "r")
    assert [*read_runs([path], "r", step="_step")[0].steps] == [9, 10]


def test_what_is_not_there_is_named_and_a_glob_is_a_run_for_each_match(tmp_path):
    log = lines(tmp_path / "a.jsonl", [{"step": 1, "r": 1, "run": "x", "s": 1, "reward": 1}])
    cases: list[tuple[list[str], str, str | None, str]] = [
        (["nothing/*.jsonl"], "r", None, "no file or folder matches"),
        (["nothing.jsonl"], "r", None, "cannot be read: No such file"),
        ([log, log], "r", None, "given twice"),
        ([f"{log}::y*"], "r", None, r"no run is called 'y\*'. There are: x"),
        ([log], "r", "t", r"has no step 't'. The row has step, r"),
        ([log], "reword", None, r"'reword'.* Did you mean 'reward'"),
    ]
    for places, metric, step, says in cases:
        with pytest.raises(UserError, match=says):
            read_runs(places, metric, step)
    lines(tmp_path / "b.jsonl", [{"step": 1, "r": 1}])
    assert [Path(run.name).name[:7] for run in read_runs([f"{tmp_path}/*.jsonl"], "r")] == ["a.jsonl", "b.jsonl"]
    with pytest.raises(UserError, match=r"has several logs \(a.jsonl, b.jsonl\); give the path of one"):
        read_runs([str(tmp_path)], "r")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: has no log"):
        read_runs([f"{tmp_path}/empty"], "r")


@pytest.mark.parametrize("format", ["trl", "verl", "prime-rl", "csv"])
def test_all_numbers_of_a_log_by_step(format, tmp_path):
    """A row of evaluation joins that of training; after a restart at step 2, what was logged from there on is new."""
    rows = [{"step": 1, "r": 0.5, "eval": ""}, {"step": 1, "r": "", "eval": 2}, {"step": 2, "r": 9, "eval": ""}]
    rows += [{"step": 3, "r": 9, "eval": ""}, {"step": 2, "r": 1, "eval": "x"}]
    path = tmp_path / "log"
    if format == "csv":
        path.write_text("\n".join(["step,r,eval", *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    else:
        write_lines(path, [{"step": row["step"], "data": row} if format == "verl" else row for row in rows])
    if format == "trl":
        path.write_text(json.dumps({"log_history": rows}))
    assert steps_of_log(path, format) == {1: {"step": 1, "r": 0.5, "eval": 2}, 2: {"step": 2, "r": 1}}
    with pytest.raises(UserError, match="log: no row has a step"):
        steps_of_log(path, format, "iteration")


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


def run(name: str, values: Any, seed: int | None = None, steps: Any = None) -> Run:
    numbers = np.atleast_1d(np.asarray(values, dtype=float))
    return Run(name, seed, np.arange(1.0, len(numbers) + 1) if steps is None else np.asarray(steps, float), numbers)


def side(name: str, finals: list[float], seeds: bool = True) -> list[Run]:
    return [run(f"{name}{i}", [0.0, final], i if seeds else None) for i, final in enumerate(finals)]


def decided(a: list[float], b: list[float], seeds: bool = True, **options: Any) -> RunClaim:
    return decide_runs(side("a", a, seeds), side("b", b, seeds), "reward", **options)


def test_pairs_have_student_s_interval_and_sides_without_seeds_welch_s():
    a, b = [0.5, 0.7, 0.6, 0.9], [0.4, 0.5, 0.55, 0.6]
    paired, apart = decided(a, b), decided(a, b[:3], seeds=False)
    assert paired.pairing == "paired by seed, over 4 training seeds" and paired.difference == student(np.subtract(a, b))
    theirs = stats.ttest_ind(a, b[:3], equal_var=False)
    interval = theirs.confidence_interval()
    assert (apart.difference.low, apart.difference.high) == pytest.approx((interval.low, interval.high))
    assert apart.difference.p == pytest.approx(theirs.pvalue) and apart.difference.n == 3
    assert "unpaired, since not all runs have a seed" in apart.pairing
    # Of equal values on each side, three of either kind fall apart so in one of ten orders.
    for n, limits in ((3, (-math.inf, math.inf, 1.0)), (4, (0.5, 0.5, 0.0))):
        same = unpaired([1.0] * n, [0.5] * n)
        assert same.mean == 0.5 and (same.low, same.high, same.p) == limits


@pytest.mark.parametrize(("a", "options", "verdict"), LOGS["verdicts"])
def test_the_verdicts_are_those_of_the_page(a, options, verdict):
    b = [0.91, 0.92, 0.89, 0.95] if verdict.startswith("smaller") else [0.9, 0.91, 0.92, 0.95]
    found = decided(a, b, **options)
    assert found.verdict == verdict and (found.more_seeds == 0) == (verdict != "inconclusive")
    assert json.loads(json.dumps(found.data()))["verdict"] == verdict
    assert f"that of b: {verdict}\n" in found.text()


def test_false_verdicts_are_as_rare_as_promised():
    """Of claims without an effect at most 5% have a direction; of those with the margin's, at most 5% are smaller."""
    rng, limit = np.random.default_rng(0), 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)

    def share(effect: float, *wrong: str) -> float:
        claims = (rng.normal(size=(2, 10)) / math.sqrt(2) for _ in range(400))
        found = [decided([*a + effect], [*b], margin=1.0).verdict for a, b in claims]
        return sum(any(word in verdict for word in wrong) for verdict in found) / len(found)

    assert share(0.0, "holds", "opposite") <= limit and share(1.0, "smaller", "opposite") <= limit
    assert share(3.0, "holds") > 0.5, "and they can be right"


def test_how_many_more_seeds_would_decide_four_of_five_claims():
    x = np.random.default_rng(1).normal(0, 1, 6)
    found = decided([*(0.5 + (x - x.mean()) / x.std(ddof=1))], [0.0] * 6)
    assert found.verdict == "inconclusive" and found.more_seeds == (seeds_to_show(0.5, 1.0) or 0) - 6
    assert f"about {found.more_seeds} more on each side would decide" in found.text()
    assert decided([1e-6, -1e-6, 1.0, -1.0], [0.0] * 4).more_seeds is None
    few = decided([0.5, 0.6], [0.4, 0.5])
    assert few.more_seeds == 4 and few.data()["difference"]["low"] is None, "two equal differences have no spread"
    assert "too few for an interval" in few.text() and "inf" not in few.text()


@pytest.mark.parametrize("options", [{}, {"margin": 0.1}, {"seeds": False}])
def test_equal_sides_are_said_to_be_equal(options):
    """No number of runs is named, since none would decide."""
    values = [0.1, 0.2, 0.4] if options.get("seeds", True) else [0.5] * 3
    for more in (0.0, 0.3):
        said = decided([value + more for value in values], values, **options).text()
        assert "all differences are equal; is it the right metric?" in said and "would" not in said


A, B = side("a", [1.0, 2.0]), side("b", [1.0, 2.0])
LONGER = [B[0], run("long", [1, 2, 3], 1)]


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (A, B[:1], r"--b: one run \(b0\). One run on a side decides nothing"),
        (A, LONGER, r"runs end at different steps, 2 \(a0\) to 3. --until 2"),
        (A, A, "on both sides: a0, a1"),
        (A, [run("b0", [1], 0, [1]), run("b1", [1, 2], 1, [0, 3])], r"end at different steps, 1 \(b0\) to 3\.$"),
        ([A[0], A[1]._replace(seed=0)], B, "--a: two runs have the same seed"),
        ([A[0], A[1]._replace(seed=4)], B, "seeds 1, 4 are on one side only"),
    ],
    ids=lambda x: x[:20] if isinstance(x, str) else "",
)
def test_what_cannot_be_compared_is_refused(a, b, says):
    with pytest.raises(UserError, match=says):
        decide_runs(a, b, "reward")
    assert decide_runs(A, LONGER, "reward", endpoint=Endpoint(until=2)).difference.n == 2, "a common step"
    sparse = [run(f"b{i}", [1.0, 2.0], i, [0, 2]) for i in (0, 1)]
    assert decide_runs(A, sparse, "reward").difference.n == 2
    with pytest.raises(UserError, match=r"the last 2 values begin at different steps, 0 \(b0\) to 1\.$"):
        decide_runs(A, sparse, "reward", endpoint=Endpoint(last=2))
