"""SHA-256 digests as hexadecimal text: of bytes, text, JSON values, files and model folders.

Each function returns the first 16 of the 64 digits, or all of them with ``full=True``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SHORT = 16  # hexadecimal digits, 64 bits

# Every file in a model folder that can change what the model generates: weights, their index, configurations,
# tokenizer (Hugging Face, BPE, WordPiece and SentencePiece files), special tokens, chat templates, custom code.
MODEL_FILES = (
    "*.safetensors",
    "*.bin",
    "*.index.json",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*",
    "*.py",
)


def of_bytes(content: bytes, full: bool = False) -> str:
    """Digest of ``content``."""
    return _digits(hashlib.sha256(content).hexdigest(), full)


def of_text(text: str, full: bool = False) -> str:
    """Digest of ``text`` in UTF-8."""
    return of_bytes(text.encode(), full)


def of_json(value: Any, full: bool = False) -> str:
    """Digest of ``value`` as JSON with sorted keys: the order of a mapping's keys does not matter."""
    return of_text(json.dumps(value, sort_keys=True), full)


def of_file(path: Path, full: bool = False) -> str:
    """Digest of a file's content, read in blocks."""
    with path.open("rb") as file:
        return _digits(hashlib.file_digest(file, "sha256").hexdigest(), full)


def of_model(folder: Path, full: bool = False) -> str:
    """Digest of the names and contents of all files in ``folder`` that a model's output depends on (`MODEL_FILES`).

    A name on a hub, which is no folder, has the digest of the name: the files behind it are not looked at.
    """
    if not folder.is_dir():
        return of_text(str(folder), full)
    paths = {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()}
    return of_json({path.relative_to(folder).as_posix(): of_file(path, full=True) for path in paths}, full)


def _digits(digits: str, full: bool) -> str:
    return digits if full else digits[:SHORT]
