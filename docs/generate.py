"""Writes the generated blocks of the documentation from committed results: python docs/generate.py.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`; the function that writes it is in `docs/tables/`,
after `@block("NAME")`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import tables
from tables.common import BLOCKS

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.S)
PAGES = [
    path
    for path in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md")
    if MARKED.search(path.read_text())
]
for module in pkgutil.iter_modules(tables.__path__):
    importlib.import_module(f"tables.{module.name}")


def fill(text: str) -> str:
    """A page with its blocks written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Rewrites the pages whose blocks have changed."""
    for path in PAGES:
        before = path.read_text()
        after = fill(before)
        if after != before:
            path.write_text(after)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
