"""The records that training writes: metrics and timings of each step."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_text, flush
from ..paths import RunFolder
from .ranks import is_rank_0, on_rank_0


class MetricsLog:
    """Appends a line per step to `metrics.jsonl` (determined by the seed) and `timings.jsonl` (not reproducible)."""

    def __init__(self, run: RunFolder, resume_at: int) -> None:
        """Keep the lines of the steps before ``resume_at``. UserError if one is missing."""
        self.run = run
        for path in (run.metrics, run.timings):
            on_rank_0(functools.partial(_truncate, path, resume_at))

    def metrics(self, row: dict[str, Any]) -> None:
        """Append a step's metrics."""
        _append(self.run.metrics, row)

    def timings(self, row: dict[str, Any]) -> None:
        """Append a step's timings."""
        _append(self.run.timings, row)

    def flush(self) -> None:
        """Flush both files to disk; called before a checkpoint is written."""
        if is_rank_0():
            for path in (self.run.metrics, self.run.timings):
                if path.exists():
                    flush(path)


def _truncate(path: Path, resume_at: int) -> None:
    """Remove the lines of steps from ``resume_at`` on, which are repeated. UserError if an earlier line is missing."""
    lines = path.read_bytes().splitlines()[:resume_at] if path.exists() else []
    for step in range(resume_at):
        try:
            recorded_step = json.loads(lines[step].decode("utf-8"))["step"]
        except (IndexError, ValueError, KeyError, TypeError, RecursionError):
            recorded_step = None
        if recorded_step != step:
            raise UserError(
                f"{path}: line {step + 1} is not step {step}, but there is a checkpoint of step {resume_at}: lines "
                f"were lost. Remove the folder {path.parent} to train the run from its beginning."
            )
    atomic_text(path, "".join(line.decode("utf-8") + "\n" for line in lines))


def line(row: Mapping[str, Any]) -> str:
    """``row`` as a line of `metrics.jsonl` or `timings.jsonl`; NaN and infinity are null."""
    return json.dumps({k: _plain(v) for k, v in row.items()}) + "\n"


def _append(path: Path, row: dict[str, Any]) -> None:
    if not is_rank_0():
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line(row))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}. Free some space and run the command again: it resumes."
        ) from error


def _plain(value: Any) -> Any:
    """``value``, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
