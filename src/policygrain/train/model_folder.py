"""Atomic writing of a model folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError


@contextlib.contextmanager
def model_folder(folder: Path, again: str) -> Iterator[Path]:
    """A temporary neighbour of ``folder`` to write a model into; at the end it takes the place of ``folder``.

    UserError where it cannot be written; its message ends with ``again``, the effect of repeating the command.
    """
    from safetensors import SafetensorError

    temporary, old = folder.with_name(f".{folder.name}"), folder.with_name(f".{folder.name}.old")
    for stale in (temporary, old):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    try:
        yield temporary
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk is any of these
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{folder}: the model cannot be written: {error}. Free some space and run the command again: {again}."
        ) from error
    shutil.rmtree(old, ignore_errors=True)
