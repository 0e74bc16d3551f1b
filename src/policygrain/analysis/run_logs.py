"""Reads logs of other trainers and trackers: runs with one metric for `policygrain claim`, or all metrics by step."""

from __future__ import annotations

import csv
import glob
import json
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, did_you_mean
from ..files import json_lines, read_json
from ..text import redacted, some
from .run_claims import Run
from .statistics import Array

# Columns with the training step, before those with a tracker's own counter of calls; and columns with the run of a row.
STEPS = ("train/global_step", "training/global_step", "global_step", "step", "training_step", "trainer/global_step")
TRACKERS = ("Step", "_step")
RUNS = ("run", "run_id", "run_name", "Name", "dir_name")
LOGS = (
    "trainer_state.json (TRL), JSON Lines (verl, prime-rl), CSV, JSON (Weights & Biases), a database (.db) of MLflow "
    "or Trackio, a folder of MLflow or TensorBoard"
)
EVENTS = "*tfevents*"  # files of TensorBoard
Entry = tuple[str, Mapping[str, Any]]  # a row of a file, and its place for messages


class Row(NamedTuple):
    """A row of a log: its place for messages, its run, its seed, step and value as written or None, its metrics."""

    where: str
    run: str
    seed: Any
    step: Any
    value: Any
    names: Iterable[str]


# ---- runs with one metric --------------------------------------------------------------------------------------------


def read_runs(places: Iterable[str], metric: str, step: str | None = None) -> list[Run]:
    """The runs at these paths, globs or addresses of MLflow; ``PLACE::NAME``: those whose names match the pattern NAME.

    ``step``: the column of the step, if it has an unusual name. UserError for a log that cannot be read.
    """
    runs: list[Run] = []
    for place in places:
        path, _, names = place.partition("::")
        matches = [path] if Path(path).exists() or not glob.has_magic(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            raise UserError(f"{place}: no file or folder matches.")
        for one in matches:
            runs += _read(one, names or "*", metric, step)
    paths = [run.name for run in runs]
    if twice := sorted({name for name in paths if paths.count(name) > 1}):
        raise UserError(f"given twice: {', '.join(twice)}.")
    return runs


def _read(path: str, names: str, metric: str, step: str | None) -> list[Run]:
    found: dict[str, list[Row]] = {}
    notes: list[str] = []
    for row in _rows(path, names, metric, step, notes):
        named = f"{row.run} (seed {row.seed})" if row.run and row.seed not in (None, "") else row.run
        found.setdefault(named, []).append(row)  # runs may share a name
    chosen = {named: rows for named, rows in found.items() if fnmatchcase(rows[0].run, names)}
    if not chosen:
        columns = [*dict.fromkeys(name for rows in found.values() for row in rows for name in row.names)]
        runs = f"no run is called {names!r}. There are: {some([*found], 30)}."
        charts = f"names no run, and has no chart of {metric!r}. There are: {some(columns, 30)}."
        raise UserError(f"{redacted(path)}: {runs if any(found) else charts if found else 'empty.'}")
    log = redacted(path)
    return [_run(f"{log}::{named}" if named else log, rows, metric, notes) for named, rows in chosen.items()]


def _run(name: str, rows: Sequence[Row], metric: str, notes: Sequence[str]) -> Run:
    """The run, without values of steps that were logged again later, such as after a restart."""
    steps: list[float] = []
    values: list[float] = []
    empty: list[float] = []
    seeds = {seed for row in rows if (seed := _number(row.seed, f"{row.where}: seed")) is not None}
    for row in rows:
        value, at = _number(row.value, f"{row.where}: {metric}"), _number(row.step, f"{row.where}: step")
        if value is None:
            empty += [at] if at is not None else []
            continue
        if at is None and steps:
            raise UserError(f"{row.where}: no step; name its column by --step. The row has {some([*row.names], 30)}.")
        if at is not None and not math.isfinite(at):
            raise UserError(f"{row.where}: {row.step!r} is not a step.")
        steps.append(at or 0.0)
        values.append(value)
    if len(seeds) > 1 or not all(map(float.is_integer, seeds)):
        listed = some([f"{one:g}" for one in seeds])
        raise UserError(
            f"{name}: its seeds are {listed}, and a run has one whole number. A log of several runs needs a column "
            f"that names the run of each row: {', '.join(RUNS)}."
        )
    if not steps:
        known = [*dict.fromkeys(key for row in rows for key in row.names)]
        hint = did_you_mean(metric, known)
        raise UserError(f"{name}: has no metric {metric!r}.{hint} The run has {some(known, 30)}.")
    every = np.array(steps)
    last = every < np.minimum.accumulate(np.append(every, np.inf)[::-1])[::-1][1:]  # before all later ones
    replaced, restarts = int((~last).sum()), int((np.diff(every) < 0).sum())
    if restarts > 2 and 2 * replaced > len(every):
        raise UserError(f"{name}: the steps go back {restarts} times. Is the log sorted by step, and is it of one run?")
    again = [
        f"{name}: {replaced} of {len(every)} values were logged again (restarts: {restarts}, doubled steps: "
        f"{(np.diff(every) == 0).sum()}); the last of each counts"
    ]
    curve = dict.fromkeys(_missing(every[last], np.array(empty)), math.nan)
    curve = dict(sorted((curve | dict(zip(every[last], np.array(values)[last], strict=True))).items()))
    numbers = [*seeds, *re.findall(r"seed[-_= ]?(\d+)", name, flags=re.IGNORECASE)[-1:]]
    seed = int(numbers[0]) if numbers else None
    return Run(name, seed, np.array([*curve]), np.array([*curve.values()]), (*again * (replaced > 0), *notes))


def _missing(steps: Array, empty: Array) -> Array:
    """The steps of rows without a value at which the run, by the usual distance of its values, has one."""
    gaps, counts = np.unique(np.diff(steps), return_counts=True)
    if not len(empty) or not len(gaps) or 2 * counts.max() < len(steps) - 1:
        return np.array([])
    between = np.setdiff1d(empty[empty > steps[0]], steps)
    since = between - steps[np.searchsorted(steps, between) - 1]
    return between[since % gaps[counts.argmax()] == 0]


def _number(value: Any, where: str) -> float | None:
    """A number, which may be NaN; None for an empty cell. UserError for anything else."""
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {value!r} is not a number.") from error


# ---- all metrics by step ---------------------------------------------------------------------------------------------


def steps_of_log(path: Path, format: str, step: str | None = None) -> dict[int, dict[str, float]]:
    """All numbers of a log of one run by training step; ``format``: trl, csv, or JSON Lines of any trainer.

    Rows of one step are joined. Where the log goes back, such as after a restart, what it had from there on is left
    out. A folder is TRL's output folder. UserError for a log that cannot be read or has no steps.
    """
    found: dict[int, dict[str, float]] = {}
    names: dict[str, None] = {}
    last = 0
    for where, values in FORMATS.get(format, _json_lines)(_inside(path) if path.is_dir() else path, []):
        names |= dict.fromkeys(values)
        step = step or _step_of(values)
        at = None if step is None else _number(values.get(step), f"{where}: {step}")
        if at is None:
            continue
        if not at.is_integer():
            raise UserError(f"{where}: {step} {at:g} is not a number of steps.")
        if at < last:
            found = {before: numbers for before, numbers in found.items() if before < at}
        last = int(at)
        numbers = found.setdefault(last, {})
        for name, value in values.items():
            with suppress(TypeError, ValueError):  # texts
                numbers[name] = float(value)
    if not found:
        raise UserError(f"{path}: no row has a step. The log has {some([*names], 30)}.")
    return found


# ---- formats ---------------------------------------------------------------------------------------------------------


def _rows(path: str, names: str, metric: str, step: str | None, notes: list[str]) -> Iterator[Row]:
    """The rows of a log; notes on lines that are cut off are appended to ``notes``."""
    if "://" in path:
        return _mlflow(path, names, metric)
    log = _inside(Path(path)) if Path(path).is_dir() else Path(path)
    if store := _mlflow_store(log):
        return _mlflow(str(store), names, metric, "" if log == store else log.name)
    if log.is_dir():
        return _tensorboard(log, metric)
    if log.suffix in (".db", ".sqlite"):
        return _database(log, names, metric)
    return _file(log, metric, step, notes)


def _inside(folder: Path) -> Path:
    """The log in a folder: TRL's newest, or the only .jsonl or .csv file; a folder of MLflow or TensorBoard itself."""
    if states := [*folder.glob("checkpoint-*/trainer_state.json"), *folder.glob("trainer_state.json")]:
        read = {state: read_json(state, "Was it cut off?") for state in states}  # or a list of objects
        return max(read, key=lambda state: read[state].get("global_step", 0) if isinstance(read[state], dict) else 0)
    files = sorted(file for kind in ("jsonl", "csv") for file in folder.glob(f"*.{kind}"))
    if (own := folder / "metrics.jsonl") in files or len(files) == 1:  # of a run of this package, or the only one
        return own if own in files else files[0]
    if _mlflow_store(folder) or any(folder.rglob(EVENTS)):
        return folder
    names = ", ".join(file.name for file in files)
    found = f"has several logs ({names}); give the path of one" if files else "has no log"
    raise UserError(f"{folder}: {found}. A log is one of: {LOGS}.")


def _file(path: Path, metric: str, step: str | None, notes: list[str]) -> Iterator[Row]:
    """The rows of a file of text with rows of one or several runs."""
    for where, values in FORMATS.get(path.suffix, _json_lines)(path, notes):
        charts = [name for name in values if name.endswith(f" - {metric}")]  # Weights & Biases
        if charts or metric in values:
            step = step or _step_of(values)
            if step is not None and step not in values:
                raise UserError(f"{where}: has no step {step!r}. The row has {some([*values], 30)}.")
        at = None if step is None else values.get(step)
        for name in charts:
            run = name.removesuffix(f" - {metric}")
            if re.match(r"[\w./-]+: ", run) and values.get(f"{name}__MIN") != values.get(f"{name}__MAX"):
                raise UserError(f"{path}: {name!r} is a mean over a group of runs. Export the chart without grouping.")
            yield Row(where, run, None, at, values[name], (metric,))
        if not charts:
            run = next((str(values[name]) for name in RUNS if name in values), "")
            yield Row(where, run, values.get("seed"), at, values.get(metric), tuple(values))


def _step_of(row: Mapping[str, Any]) -> str | None:
    """The column of the step: the first that has a value in the row, or else that is there."""
    there = [name for name in (*STEPS, *TRACKERS) if name in row]
    return next((name for name in there if row[name] not in (None, "")), there[0] if there else None)


def _json_lines(path: Path, notes: list[str]) -> Iterator[Entry]:
    for number, entry in json_lines(path, f"A log is one of: {LOGS}.", cut_off=notes):
        values = {**entry, **entry["data"]} if isinstance(entry.get("data"), dict) else entry  # verl
        yield f"{path}, line {number}", values


def _csv(path: Path, notes: list[str]) -> Iterator[Entry]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():  # too many cells, or too few
                    if any(reader):
                        raise UserError(f"{where}: not as many cells as the {len(reader.fieldnames or [])} columns.")
                    notes.append(f"{where}: the last line is cut off and left out")
                    return
                yield where, row
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as CSV: {error}.") from error


def _json(path: Path, notes: list[str]) -> Iterator[Entry]:
    """`log_history` of a trainer_state.json, or a list of objects."""
    content = read_json(path, "Was it cut off? JSON Lines are read from .jsonl files.")
    if isinstance(content, dict):
        content = content.get("log_history")
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise UserError(f"{path}: expected `log_history` or a list of objects. A log is one of: {LOGS}.")
    yield from ((f"{path}, entry {number}", entry) for number, entry in enumerate(content, start=1))


FORMATS = {"trl": _json, ".json": _json, "csv": _csv, ".csv": _csv}  # others: JSON Lines


def _database(path: Path, names: str, metric: str) -> Iterator[Row]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            columns = [column for _, column, *_ in connection.execute("PRAGMA table_info(metrics)")]
            if "run_uuid" in columns:
                yield from _mlflow(f"sqlite:///{path.resolve()}", names, metric)
                return
            points = connection.execute("SELECT id, run_name, step, metrics FROM metrics ORDER BY id")
            for number, run, step, text in points:
                values = json.loads(text)
                yield Row(f"{path}, row {number}", run, None, step, values.get(metric), tuple(values))
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read as a database of MLflow or Trackio: {error}.") from error


def _mlflow_store(folder: Path) -> Path | None:
    """The file store of MLflow that a folder is, or in which it is an experiment or a run."""
    if (folder / "meta.yaml").exists():
        return folder.resolve().parents[1 if (folder / "metrics").is_dir() else 0]
    return folder if any(folder.glob("*/meta.yaml")) else None


def _mlflow(uri: str, names: str, metric: str, part: str = "") -> Iterator[Row]:
    """The runs `EXPERIMENT/NAME ID` of a store, or of its ``part``, an id, with the values of those that match."""
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    from mlflow import MlflowClient

    try:
        client = MlflowClient(uri)
        for experiment in client.search_experiments():
            for run in client.search_runs([experiment.experiment_id], max_results=50_000):
                if part not in ("", experiment.experiment_id, run.info.run_id):
                    continue
                name = f"{experiment.name}/{run.info.run_name} {run.info.run_id}"
                where, seed = f"{redacted(uri)}, run {name}", run.data.params.get("seed")
                yield Row(where, name, seed, None, None, tuple(run.data.metrics))
                if metric in run.data.metrics and fnmatchcase(name, names):
                    points = client.get_metric_history(run.info.run_id, metric)
                    for point in sorted(points, key=lambda point: (point.timestamp, point.step)):
                        yield Row(where, name, seed, point.step, point.value, (metric,))
    except Exception as error:  # MLflow and its database drivers have no common error class
        text = redacted(str(error).strip().partition("\n")[0])
        raise UserError(f"{redacted(uri)}: MLflow does not answer ({text}).") from None  # the cause may hold a password


def _tensorboard(folder: Path, metric: str) -> Iterator[Row]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise UserError(f"{folder}: event files are read by TensorBoard's package: pip install tensorboard.") from error
    found = {file.parent for file in folder.rglob(EVENTS)}
    for one in sorted(one for one in found if not found & {*one.parents}):  # hyperparameters are in a folder inside
        # All values, not a sample of them; and also those from before a restart, on which the run has a note.
        log = EventAccumulator(str(one), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
        run, names = "" if one == folder else str(one.relative_to(folder)), log.Tags()["scalars"]
        yield Row(str(one), run, None, None, None, names)
        for event in log.Scalars(metric) if metric in names else []:
            yield Row(str(one), run, None, event.step, event.value, (metric,))
