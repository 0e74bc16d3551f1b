"""SHA-256 digests as hexadecimal text: of text, JSON values, files and model folders."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .errors import UserError

SHORT, FULL = 16, 64  # hexadecimal digits
LARGE = 2**24  # bytes, from which a file's digest is cached

# Every file in a model folder that can change what the model generates: weights, configurations, tokenizer, special
# tokens, chat templates, custom code; all but the record in the folder of an initial model.
MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*/*.jinja", "*.py")
NO_MODEL_FILES = ("start.json",)


def of_text(text: str, digits: int = SHORT) -> str:
    """Digest of ``text`` in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def of_json(value: Any) -> str:
    """Digest of ``value`` as JSON with sorted keys: the order of a mapping's keys does not matter."""
    return of_text(json.dumps(value, sort_keys=True))


def of_file(path: Path, digits: int = SHORT) -> str:
    """Digest of a file's content, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:digits]


def of_model(folder: Path, remembered: bool = False) -> str:
    """Digest of the names and contents of all files in ``folder`` that a model's output depends on (`MODEL_FILES`).

    ``remembered``: a large file is not read again if its size and modification time have not changed. UserError if
    ``folder`` does not exist.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder with a model.")
    paths = {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.name not in NO_MODEL_FILES}
    contents = {path: _remembered(path) if remembered else of_file(path, FULL) for path in paths}
    return of_json({path.relative_to(folder).as_posix(): content for path, content in contents.items()})


def _remembered(path: Path) -> str:
    """The full digest of a file; that of a large file is read from the user's cache if the file has not changed."""
    stat = path.stat()
    if stat.st_size < LARGE:
        return of_file(path, FULL)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "policygrain" / "digests"
    entry = cache / of_json([str(path.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns])
    with contextlib.suppress(OSError):
        if len(digest := entry.read_text()) == FULL:  # it has fewer if it was not completely written
            return digest
    digest = of_file(path, FULL)
    with contextlib.suppress(OSError):  # without a cache it is only slower
        cache.mkdir(parents=True, exist_ok=True)
        entry.write_text(digest)
    return digest
