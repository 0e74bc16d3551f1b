"""Atomic writing of files, and reading of JSON with errors that name the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .errors import UserError


def atomic_text(path: Path, text: str) -> None:
    """Write ``text`` to a temporary file in the same folder, flush it to disk, and rename it to ``path``.

    UserError if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot be written: {error.strerror or error}. The previous file was not changed."
        ) from error


def atomic_json(path: Path, data: Any) -> None:
    """Write JSON, atomically."""
    atomic_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON. UserError with the path if the file is missing or invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read: {error}. Delete it and run the command again to create it anew."
        ) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON Lines. UserError with the path, and the line if it is invalid."""
    rows = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: not JSON ({error}).") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}.") from error
    return rows
