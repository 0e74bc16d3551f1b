"""SHA-256 digests as hexadecimal text: of text, JSON values, files and model folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .errors import UserError

SHORT, FULL = 16, 64  # hexadecimal digits

# Every file in a model folder that can change what the model generates: weights, configurations, tokenizer, special
# tokens, chat templates, custom code.
MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*/*.jinja", "*.py")


def of_text(text: str, digits: int = SHORT) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def of_json(value: Any) -> str:
    """Digest of ``value`` as JSON with sorted keys: the order of a mapping's keys does not matter."""
    return of_text(json.dumps(value, sort_keys=True))


def of_file(path: Path, digits: int = SHORT) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:digits]


def of_model(folder: Path) -> str:
    """Digest of the names and contents of all `MODEL_FILES` in ``folder``. UserError if it does not exist."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder with a model.")
    # Without the record of an initial model.
    paths = {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.name != "start.json"}
    return of_json({path.relative_to(folder).as_posix(): of_file(path, FULL) for path in paths})
