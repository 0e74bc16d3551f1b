"""Files that are compared, damaged, written or imported."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from policygrain.data.sets import SETS
from policygrain.files import json_lines

# The registered sets of programs, and those in the folder of real sets.
CODE = ("humaneval", "humaneval_plus", "mbpp_plus")
RECORDED = tuple(name for name in SETS if name not in CODE)


def snapshot(path: Path) -> dict[str, bytes]:
    """The content of a file, or of every file in a folder, by its path from the parent of ``path``."""
    files = [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write JSON Lines, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in json_lines(path)]


def load_script(path: Path) -> ModuleType:
    """A module that is in no package, imported with its folder on the path, as a script's."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        spec.loader.exec_module(module)
    return module
