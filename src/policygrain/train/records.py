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


def resume_logs(run: RunFolder, step: int) -> None:
    """Keep the lines of the steps before ``step``. UserError if one is missing.

    `metrics.jsonl` has a line per step that the seed determines, `timings.jsonl` one that is not reproducible.
    """
    for path in (run.metrics, run.timings):
        on_rank_0(functools.partial(_truncate, path, step))


def flush_logs(run: RunFolder) -> None:
    """Flush both files to disk, before a checkpoint is written."""
    for path in (run.metrics, run.timings):
        if is_rank_0() and path.exists():
            flush(path)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line to `metrics.jsonl` or `timings.jsonl`, by rank 0."""
    if not is_rank_0():
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line(row))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}. Free some space and run the command again: it resumes."
        ) from error


def line(row: Mapping[str, Any]) -> str:
    """``row`` as a line of these files; NaN and infinity, which JSON does not have, are null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"


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
