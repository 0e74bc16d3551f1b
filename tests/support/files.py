"""Files that are compared or damaged."""

from __future__ import annotations

from pathlib import Path


def snapshot(path: Path) -> dict[str, bytes]:
    """The content of a file, or of every file in a folder, by its path from the parent of ``path``."""
    files = [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
