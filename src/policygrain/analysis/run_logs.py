"""Reads logs of other trainers and trackers as runs with one metric, for `policygrain claim`.

Logs are read row by row; a value takes 16 bytes.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import itertools
import json
import math
import re
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, did_you_mean
from ..files import json_lines
from .run_claims import Run
from .statistics import Array

MOST_NAMES = 1000  # metrics of a run that are remembered for a message
# Columns with the training step, before those with a tracker's own counter of calls.
STEPS = ("train/global_step", "training/global_step", "global_step", "step", "training_step", "trainer/global_step")
TRACKERS = ("Step", "_step")
RUNS = ("run", "run_id", "run_name", "Name", "dir_name")  # columns with the run of a row
NAMES, VALUES = ("tag", "metric", "key"), ("value", "Value")  # columns of a table in long form
FORMATS = (
    "trainer_state.json (TRL), JSON Lines (verl, prime-rl), CSV, JSON (Weights & Biases, TensorBoard), a database "
    "(.db) of MLflow or Trackio, an MLflow run folder"
)


class _Series:
    """The values of a run in the order of its log, and its seed."""

    def __init__(self) -> None:
        self.steps, self.values = array("d"), array("d")
        self.empty = array("d")  # steps of rows without a value
        self.seed: int | None = None

    def run(self, name: str, ends: Iterable[str]) -> Run:
        """The run, without values of steps that were logged again later, such as after a restart."""
        written = re.findall(r"seed[-_=]?(\d+)", name, flags=re.IGNORECASE)
        seed = self.seed if self.seed is not None else int(written[-1]) if written else None
        steps, values = np.frombuffer(self.steps), np.frombuffer(self.values)
        later = np.minimum.accumulate(np.append(steps, np.inf)[::-1])[::-1][1:]  # the smallest step after each
        last = steps < later
        replaced, restarts = int((~last).sum()), int((np.diff(steps) < 0).sum())
        if restarts > 2 and 2 * replaced > len(steps):
            raise UserError(
                f"{name}: the steps go back {restarts} times. Is the log sorted by step, and is it of one run?"
            )
        note = (
            f"{name}: {replaced} of {len(steps)} values were logged again (restarts: {restarts}, "
            f"doubled steps: {(np.diff(steps) == 0).sum()}); the last of each counts"
        )
        missing = _missing(steps[last], np.frombuffer(self.empty))
        return Run(name, seed, steps[last], values[last], (*[note] * (replaced > 0), *ends), missing)


def _missing(steps: Array, empty: Array) -> Array:
    """The steps of rows without a value at which the run, by the usual distance of its values, has one."""
    gaps, counts = np.unique(np.diff(steps), return_counts=True)
    if not len(empty) or not len(gaps) or 2 * counts.max() < len(steps) - 1:
        return np.array([])
    usual = gaps[counts.argmax()]
    between = np.setdiff1d(empty[empty > steps[0]], steps)
    since = between - steps[np.searchsorted(steps, between) - 1]
    return between[since % usual == 0]


def read_runs(places: Iterable[str], metric: str, step: str | None = None) -> list[Run]:
    """The runs at these paths or globs; ``FILE::NAME`` selects the runs in a file whose names match the pattern NAME.

    ``step``: the column of the step, if it has an unusual name. UserError for a log that cannot be read, and for a run
    without the metric, whose message names the run's metrics.
    """
    runs: list[Run] = []
    for place in places:
        path, _, names = place.partition("::")
        matches = [path] if Path(path).exists() or not glob.has_magic(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            raise UserError(f"{place}: no file or folder matches.")
        for one in matches:
            runs += _read(Path(one), names or "*", metric, step)
    paths = [run.name for run in runs]
    if twice := sorted({name for name in paths if paths.count(name) > 1}):
        raise UserError(f"given twice: {', '.join(twice)}.")
    return runs


def _read(path: Path, names: str, metric: str, step: str | None) -> list[Run]:
    series: dict[str, _Series] = {}
    known: dict[str, None] = {}
    others: dict[str, None] = {}
    ends: list[str] = []
    for row in rows(path, metric, step, ends):
        if not fnmatchcase(row.run, names):
            others[row.run] = None
            continue
        number = _number(row.seed, f"{row.where}: seed")
        if row.seed is not None and (number is None or not number.is_integer()):
            raise UserError(f"{row.where}: {row.seed!r} is not a seed.")
        seed = None if number is None else int(number)
        named = f"{row.run} (seed {seed})" if row.run and seed is not None else row.run  # runs may share a name
        one = series.setdefault(named, _Series())
        if seed is not None:
            if one.seed not in (None, seed):
                raise UserError(
                    f"{row.where}: seed {seed} after seed {one.seed} in one run. A log of several runs needs a column "
                    f"that names the run of each row: {', '.join(RUNS)}."
                )
            one.seed = seed
        if len(known) < MOST_NAMES:
            known.update((name, None) for name, value in row.values.items() if not isinstance(value, dict | list))
        if (value := _number(row.values.get(metric), f"{row.where}: {metric}")) is None:
            if one.steps and isinstance(row.step, int | float | str):
                with contextlib.suppress(ValueError):
                    one.empty.append(float(row.step))
            continue
        if row.step is None:
            if one.steps:
                raise UserError(f"{row.where}: no step; name its column by --step. The row has {listed(row.values)}.")
            at: float | None = 0.0
        else:
            at = _number(row.step, f"{row.where}: step")
        if at is None or not math.isfinite(at):
            raise UserError(f"{row.where}: {row.step!r} is not a step.")
        one.steps.append(at)
        one.values.append(value)
    if not series:
        raise UserError(
            f"{path}: no run is called {names!r}. There are: {listed(others)}." if others else f"{path}: empty."
        )
    runs = []
    for run, one in series.items():
        name = f"{path}::{run}" if run else str(path)
        if not one.steps:
            raise UserError(
                f"{name}: has no metric {metric!r}.{did_you_mean(metric, known)} The run has {listed(known)}."
            )
        runs.append(one.run(name, ends))
    return runs


def _number(value: Any, where: str) -> float | None:
    """A number, which may be NaN; None for an empty cell. UserError for other text."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UserError(f"{where}: {value!r} is not a number.")
    try:
        return float(value)
    except ValueError as error:
        raise UserError(f"{where}: {value!r} is not a number.") from error


# ---- formats ---------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of a log: its place for messages, the name of its run in the file, and its seed, step and values.

    Seed and step are as written, or None if the row has none.
    """

    where: str
    run: str
    seed: Any
    step: Any
    values: Mapping[str, Any]


def rows(path: Path, metric: str, step: str | None, ends: list[str]) -> Iterator[Row]:
    """The rows of a file or folder. Notes on lines that are cut off are appended to ``ends``."""
    path = _inside(path) if path.is_dir() else path
    if path.is_dir():
        yield from _mlflow_folder(path, metric)
    elif path.suffix in (".db", ".sqlite"):
        yield from _database(path, metric)
    else:
        try:
            if path.suffix == ".json":
                entries = _json(path)
            elif path.suffix in (".csv", ".tsv"):
                entries = _csv(path, ends)
            else:
                lines = json_lines(path, f"A log is one of: {FORMATS}.", cut_off=ends)
                entries = ((f"{path}, line {number}", entry) for number, entry in lines)
            for where, entry in entries:
                values = {**entry, **entry["data"]} if isinstance(entry.get("data"), dict) else entry  # verl
                if (name := _first(NAMES, values)) and (value := _first(VALUES, values)) and values[name] != "":
                    values = {k: v for k, v in values.items() if k not in (name, value)} | {values[name]: values[value]}
                charts = [name for name in values if name.endswith(f" - {metric}")]  # Weights & Biases
                if step is None and (charts or metric in values):
                    step = _first((*STEPS, *TRACKERS), values)
                if step is not None and step not in values and (charts or metric in values):
                    raise UserError(f"{where}: has no step {step!r}. The row has {listed(values)}.")
                at = None if step is None else values.get(step)
                run = next((str(values[name]) for name in RUNS if name in values), "")
                for name in charts:
                    of_run = name.removesuffix(f" - {metric}")
                    if re.match(r"[\w./-]+: ", of_run) and values.get(f"{name}__MIN") != values.get(f"{name}__MAX"):
                        raise UserError(
                            f"{path}: {name!r} is a mean over a group of runs, whose spread over seeds it hides. "
                            "Export the chart without grouping, or the history of each run."
                        )
                    yield Row(where, of_run, None, at, {metric: values[name]})
                if not charts:
                    yield Row(where, run, values.get("seed"), at, values)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
        except csv.Error as error:
            raise UserError(f"{path}: cannot be read as CSV: {error}.") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: is not a text file. A log is one of: {FORMATS}.") from error


def _first(names: Iterable[str], row: Mapping[str, Any]) -> str | None:
    """The first of ``names`` that has a value in the row, or else that is a column of it."""
    there = [name for name in names if name in row]
    return next((name for name in there if row[name] not in (None, "")), there[0] if there else None)


def _inside(folder: Path) -> Path:
    """The log in a run's folder: TRL's newest, an MLflow folder itself, or the only .jsonl or .csv file."""
    if states := [*folder.glob("checkpoint-*/trainer_state.json"), *folder.glob("trainer_state.json")]:
        numbers = {state: re.fullmatch(r"checkpoint-(\d+)", state.parent.name) for state in states}
        return max(states, key=lambda state: int(found[1]) if (found := numbers[state]) else 0)
    if (folder / "metrics").is_dir() and (folder / "meta.yaml").exists():
        return folder
    files = sorted(file for kind in ("jsonl", "csv") for file in folder.glob(f"*.{kind}"))
    if len(files) == 1:
        return files[0]
    names = ", ".join(file.name for file in files)
    found = f"has several logs ({names}); give the path of one" if files else "has no log"
    raise UserError(f"{folder}: {found}. A log is one of: {FORMATS}.")


def _csv(path: Path, ends: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    is_ended = path.read_bytes()[-1:] in (b"\n", b"")
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        header = next(reader, [])
        if len(header) == 1 and (separator := next(filter(header[0].count, ";\t"), None)):
            raise UserError(
                f"{path}: columns are separated by {separator!r}; expected commas and decimal points (.tsv: tabs)."
            )
        for cells in filter(None, reader):
            where = f"{path}, line {reader.line_num}"
            if len(cells) < len(header) and not is_ended and not any(reader):
                ends.append(f"{where}: the last line is cut off and left out")
                return
            if len(cells) != len(header):
                raise UserError(f"{where}: {len(cells)} cells under {len(header)} columns.")
            yield where, dict(zip(header, cells, strict=True))


def _json(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`log_history` of a trainer_state.json, a list of objects, an object of columns, or TensorBoard's list of rows."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not JSON ({error}); was it cut off? JSON Lines are read from .jsonl files."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        content = content["log_history"]
    elif isinstance(content, dict) and content and all(isinstance(column, list | dict) for column in content.values()):
        columns = [[*c.values()] if isinstance(c, dict) else c for c in content.values()]
        if len({len(column) for column in columns}) > 1:
            raise UserError(f"{path}: its columns have different lengths.")
        content = [dict(zip(content, cells, strict=True)) for cells in zip(*columns, strict=True)]
    elif isinstance(content, list) and content and all(isinstance(row, list) and len(row) == 3 for row in content):
        content = [dict(zip(("Wall time", "Step", "Value"), row, strict=True)) for row in content]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise UserError(f"{path}: expected `log_history`, a list of objects, or columns. A log is one of: {FORMATS}.")
    yield from ((f"{path}, entry {number}", entry) for number, entry in enumerate(content, start=1))


def _database(path: Path, metric: str) -> Iterator[Row]:
    names = "SELECT DISTINCT key FROM metrics"
    seeds = "SELECT run_uuid, value FROM params WHERE key = 'seed'"
    points = (
        "SELECT m.run_uuid, r.name, m.step, m.value, m.is_nan FROM metrics m JOIN runs r ON r.run_uuid = m.run_uuid "
        "WHERE m.key = ? AND r.lifecycle_stage = 'active' ORDER BY m.run_uuid, m.timestamp, m.step"
    )
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            if "run_name" in [column for _, column, *_ in connection.execute("PRAGMA table_info(metrics)")]:
                yield from _trackio(path, connection)
                return
            known = [key for (key,) in connection.execute(names)]
            if metric not in known:
                raise UserError(
                    f"{path}: has no metric {metric!r}.{did_you_mean(metric, known)} The database has {listed(known)}."
                )
            seed_of = dict(connection.execute(seeds).fetchall())
            for run, name, step, value, is_nan in connection.execute(points, (metric,)):
                values = {metric: math.nan if is_nan else value}
                yield Row(f"{path}, run {run}", f"{name or ''} {run}".strip(), seed_of.get(run), step, values)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UserError(f"{path}: cannot be read as a database of MLflow or Trackio: {error}.") from error


def _trackio(path: Path, connection: sqlite3.Connection) -> Iterator[Row]:
    for number, run, step, metrics in connection.execute("SELECT id, run_name, step, metrics FROM metrics ORDER BY id"):
        yield Row(f"{path}, row {number}", run, None, step, json.loads(metrics))


def _mlflow_folder(folder: Path, metric: str) -> Iterator[Row]:
    file, seed = folder / "metrics" / metric, folder / "params" / "seed"
    if not file.is_file():
        known = [
            str(path.relative_to(folder / "metrics")) for path in (folder / "metrics").rglob("*") if path.is_file()
        ]
        yield Row(str(folder), "", None, None, dict.fromkeys(known))
        return
    value_of_seed = seed.read_text().strip() if seed.exists() else None
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where, cells = f"{file}, line {number}", line.split()
            if len(cells) != 3:
                raise UserError(f"{where}: expected a time, a value and a step.")
            yield Row(where, "", value_of_seed, cells[2], {metric: cells[1]})


def listed(names: Iterable[str]) -> str:
    """Up to 30 names for a message."""
    shown = [*itertools.islice(names, 30)]
    return ", ".join(map(repr, shown)) + (", …" if len(shown) == 30 else "")
