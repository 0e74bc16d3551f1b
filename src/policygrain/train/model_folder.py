"""Writing a model folder that is complete or not there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError


@contextlib.contextmanager
def model_folder(folder: Path, again: str) -> Iterator[Path]:
    """A temporary neighbour of ``folder`` to write a model into; at the end it takes the place of ``folder``.

    UserError where it cannot be written; ``again`` says what the same command does when there is space.
    """
    from safetensors import SafetensorError

    temporary, old = folder.with_name(f".{folder.name}"), folder.with_name(f".{folder.name}.old")
    for left in (temporary, old):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
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
