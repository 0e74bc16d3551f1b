"""Writes files atomically, and reads JSON with errors that name the file."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import UserError


def atomic_text(path: Path, text: str) -> None:
    """`atomic_bytes` of ``text`` in UTF-8."""
    atomic_bytes(path, text.encode("utf-8"))


def atomic_bytes(path: Path, content: bytes) -> None:
    """Write a temporary file in the same folder, flush it, and rename it to ``path``. UserError if that fails."""
    temporary = path.with_name(f".{path.name}.tmp")  # the same each time, so a killed process leaves at most one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        reason = f"{error.strerror or error}. The previous file was not changed"
        raise UserError(f"{path}: cannot be written: {reason}.") from error


def check_free_space(folder: Path, needed_mb: int = 200) -> None:
    """UserError if ``folder`` cannot be written or its disk is nearly full; called before expensive work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free // 2**20
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written.")
    if free < needed_mb:
        raise UserError(f"{folder}: only {free} MB are free on this disk, at least {needed_mb} MB are needed.")


def check_out(path: Path | None) -> None:
    """UserError if no file can be written at ``path``, unless that is None; called before expensive work."""
    if path is not None:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give the name of a file.")
        check_free_space(next(folder for folder in path.absolute().parents if folder.exists()), needed_mb=1)


def lock(path: Path, locked: str, wait: float = 0.0) -> IO[str]:
    """Lock the file ``path`` for up to ``wait`` seconds; it stays locked until it is closed or this process has ended.

    UserError, with the text ``locked`` and what it says of itself, if another process has locked it. Between machines
    this works if the file system supports `flock` (NFS does; Lustre and BeeGFS do with certain mount options).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}.") from error
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() >= end:
                file.seek(0)
                raise UserError(f"{path.parent}: {locked} ({file.read().strip()}).") from error
            time.sleep(0.5)
        except OSError:  # a file system without locks
            break
    os.set_inheritable(file.fileno(), True)  # to programs that are started with `close_fds=False`
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}\n")
    file.flush()
    return file


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, again: str = "Delete it and run the command again to create a new one.") -> Any:
    """Read JSON. UserError with the path and the remedy ``again`` if the file is missing or invalid."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}. {again}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}). {again}") from error


def json_lines(path: Path, again: str = "", cut_off: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a JSON Lines file, `.gz` or not; empty lines are skipped.

    UserError with file, line and the remedy ``again`` if a line is not a JSON object. With ``cut_off``, an incomplete
    last line, which a killed process leaves, is skipped, and a note on it is appended there.
    """
    again = f" {again}" if again else ""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if cut_off is not None and line.startswith(b"{") and not line.endswith(b"\n"):
                        cut_off.append(f"{path}, line {number}: the last line is cut off and left out")
                        return
                    raise UserError(f"{path}, line {number}: not JSON ({error}).{again}") from error
                if not isinstance(row, dict):
                    kind = type(row).__name__
                    raise UserError(f"{path}, line {number}: expected a JSON object, got {kind}.{again}")
                yield number, row
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}.{again}") from error


@contextmanager
def model_folder(folder: Path, again: str) -> Iterator[Path]:
    """A temporary neighbour of ``folder`` to write a model into; at the end it takes the place of ``folder``.

    UserError if it cannot be written, which ends with ``again``, the effect of running the command again.
    """
    from safetensors import SafetensorError

    temporary = folder.with_name(f".{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        yield temporary
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk is any of these
        shutil.rmtree(temporary, ignore_errors=True)
        remedy = f"Free some space and run the command again: {again}."
        raise UserError(f"{folder}: the model cannot be written: {error}. {remedy}") from error
