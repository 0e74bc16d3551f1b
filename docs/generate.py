"""Writes the generated blocks of the documentation from committed results: python docs/generate.py.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of BLOCKS (`docs/tables/`).
"""

from __future__ import annotations

import re
from pathlib import Path

from tables import (
    benchmarks,
    cases_map,
    engines,
    integrations,
    length,
    methods,
    mismatch,
    night,
    phase,
    problem_sets,
    smollm2,
    studies,
    trainers,
    turns,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "benchmarks/README.md",
    "docs/benchmarks.md",
    "docs/cases.md",
    "docs/coding.md",
    "docs/engines.md",
    "docs/integrations/same-name.md",
    "docs/methods/README.md",
    "docs/mismatch.md",
    "docs/phase.md",
    "docs/length.md",
    "docs/pretrained.md",
    "docs/regime.md",
    "docs/reliability.md",
    "docs/scaling.md",
    "docs/statistics.md",
    "docs/studies.md",
    "docs/training.md",
    "docs/turns.md",
)
MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.S)
BLOCKS = (
    benchmarks.BLOCKS
    | cases_map.BLOCKS
    | engines.BLOCKS
    | studies.BLOCKS
    | phase.BLOCKS
    | length.BLOCKS
    | mismatch.BLOCKS
    | night.BLOCKS
    | problem_sets.BLOCKS
    | smollm2.BLOCKS
    | integrations.BLOCKS
    | methods.BLOCKS
    | trainers.BLOCKS
    | turns.BLOCKS
)


def fill(text: str) -> str:
    """A page with its blocks written anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Rewrites the pages whose blocks have changed."""
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = fill(before)
        if after != before:
            path.write_text(after)
            print(page)


if __name__ == "__main__":
    main()
