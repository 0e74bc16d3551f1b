"""Reads the JSON Lines files of the results: metrics, timings, samples. Errors name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError


def read_lines(path: Path, again: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line. UserError with file and line if it is invalid, and ``again``, the remedy."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    row = json.loads(line.decode("utf-8"))
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{path}, line {number}: not JSON ({error}). {again}") from error
                if not isinstance(row, dict):
                    raise UserError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}. {again}")
                yield number, row
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}. {again}") from error


def read_steps(path: Path, again: str) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl` or `timings.jsonl`. UserError unless their steps are 0, 1, 2 …"""
    rows: list[dict[str, Any]] = []
    for number, row in read_lines(path, again):
        if row.get("step") != len(rows):
            raise UserError(
                f"{path}, line {number}: expected step {len(rows)}, found {row.get('step')!r}: steps are missing or "
                f"doubled. {again}"
            )
        rows.append(row)
    return rows
