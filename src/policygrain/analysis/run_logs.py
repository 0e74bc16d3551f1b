"""The logs of other trainers and trackers as runs with one metric, for `policygrain claim`.

Files are read a row at a time; of each value 16 bytes are kept.
"""

from __future__ import annotations

import glob
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, did_you_mean
from .log_rows import listed, rows
from .run_claims import Run

MOST_NAMES = 1000  # of metrics, remembered for a message


class _Series:
    """The values of a run as they are read. A step that comes again replaces what was logged from there on."""

    def __init__(self) -> None:
        self.steps, self.values = array("d"), array("d")
        self.seed: int | None = None
        self.doubled = self.restarts = self.replaced = self.rows = 0

    def add(self, step: float, value: float) -> None:
        self.rows += 1
        if self.steps and step <= self.steps[-1]:
            place = bisect_left(self.steps, step)
            again = step == self.steps[-1]
            self.doubled += again
            self.restarts += not again
            self.replaced += len(self.steps) - place
            del self.steps[place:], self.values[place:]
        self.steps.append(step)
        self.values.append(value)

    def notes(self, name: str) -> tuple[str, ...]:
        if not self.replaced:
            return ()
        if self.restarts > 2 and 2 * self.replaced > self.rows:
            raise UserError(
                f"{name}: the steps go back {self.restarts} times. Is it sorted by step, and is it of one run?"
            )
        return (
            f"{name}: {self.replaced} of {self.rows} values were logged again ({self.restarts} restarts, "
            f"{self.doubled} doubled steps); the last of each counts",
        )


def read_runs(places: Iterable[str], metric: str, step: str | None = None) -> list[Run]:
    """The runs at these paths or globs. ``FILE::NAME`` takes those of a file whose names match the pattern NAME.

    ``step``: the column of the step, where it has an unusual name. UserError for what cannot be read, and for
    a metric that a run does not have, with those that there are.
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
        one = series.setdefault(row.run, _Series())
        if row.seed is not None:
            one.seed = _seed(row.seed, row.where)
        if len(known) < MOST_NAMES:
            known.update((name, None) for name, value in row.values.items() if not isinstance(value, dict | list))
        if (value := _number(row.values.get(metric), f"{row.where}: {metric}")) is None:
            continue
        if row.step is None:
            if one.rows:
                raise UserError(f"{row.where}: no step; name its column by --step. It has {listed(row.values)}.")
            one.add(0.0, value)
            continue
        at = _number(row.step, f"{row.where}: step")
        if at is None or not math.isfinite(at):
            raise UserError(f"{row.where}: {row.step!r} is no step.")
        one.add(at, value)
    if not series:
        raise UserError(
            f"{path}: no run is called {names!r}. There are: {listed(others)}." if others else f"{path}: empty."
        )
    runs = []
    for run, one in series.items():
        name = f"{path}::{run}" if run else str(path)
        if not one.rows:
            raise UserError(f"{name}: has no metric {metric!r}.{did_you_mean(metric, known)} It has {listed(known)}.")
        written = re.findall(r"seed[-_=]?(\d+)", name, flags=re.IGNORECASE)
        seed = one.seed if one.seed is not None else int(written[-1]) if written else None
        steps, values = np.frombuffer(one.steps), np.frombuffer(one.values)
        runs.append(Run(name, seed, steps, values, (*one.notes(name), *ends)))
    return runs


def _number(value: Any, where: str) -> float | None:
    """A number, which may be NaN; None for an empty cell. UserError for other text."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UserError(f"{where}: {value!r} is no number.")
    try:
        return float(value)
    except ValueError as error:
        raise UserError(f"{where}: {value!r} is no number.") from error


def _seed(value: Any, where: str) -> int:
    number = _number(value, f"{where}: seed")
    if number is None or number != int(number):
        raise UserError(f"{where}: {value!r} is no seed.")
    return int(number)
