"""Writes the pages and figures that show published records: python docs/pages.py FOLDER (`make pages`).

FOLDER/NAME is the thawed record docs/records/NAME.zip. The page of another record is a line of PAGES; `results` is the
table of accuracies, sampled and greedy, of any study that evaluates its models.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from tables import engines

from policygrain.commands.study import counts
from policygrain.results import StudyResults

DOCS = Path(__file__).resolve().parent
BOTH = {"": "findings", "Accuracy, sampled and greedy": "results"}
WHOLE = {"Accuracy, sampled and greedy": "results", "Findings": "findings", "The papers' claims": "claims"}


class Page(NamedTuple):
    """A page of tables of one record."""

    path: str  # below docs/
    record: str
    title: str
    tables: dict[str, str]  # heading → table; an empty heading is left out


PAGES = (
    *(
        Page(f"{name}.md", "laptop", f"The laptop study: {name}", {"": name})
        for name in ("findings", "results", "ablation")
    ),
    Page("claims.md", "recipes", "The papers' claims, with 24 seeds", {"": "claims"}),
    Page("night.md", "night", "Fresh seeds at three borders of the map: all endpoints", BOTH),
    Page("night-replicate.md", "night-replicate", "Other fresh seeds at three borders of the map: all endpoints", BOTH),
    Page("turns-study.md", "turns", "Calls of a calculator: all comparisons", BOTH),
    Page("turns-replicate.md", "turns-replicate", "Calls of a calculator again, with clips: all comparisons", BOTH),
    Page("mask.md", "mask", "TEPO's KL term and its mask: all endpoints", BOTH),
    Page("hour.md", "earlier/hour", "The study of an hour, of an earlier design", WHOLE),
)


FIGURES = {  # in docs/figures/ → record and figure
    "regimes": ("laptop", "regimes"),
    "verdicts": ("recipes", "verdicts"),
    "benchmarks": ("laptop", "benchmarks"),
    "phase": ("phase", "phase"),
    "night": ("night", "regimes"),
    "turns": ("turns-replicate", "regimes"),
    "mismatch": ("mismatch", "phase"),
    "clip_ranges": ("phase-ranges", "ranges"),
    "newer_estimators": ("newer", "estimators"),
    "newer_rounds": ("newer", "rounds"),
}


def head(page: Page, thawed: Path) -> str:
    """Title, record and size of the study in the folder ``thawed``."""
    results = StudyResults(thawed)
    size = counts(results.fingerprints, results.matrix)
    return f"# {page.title}\n\nDrawn by `make pages` from the record [{page.record}.zip](records).\n{size}\n"


def text(page: Page, thawed: Path) -> str:
    """The page; its tables are those that `policygrain thaw` has drawn."""
    parts = [head(page, thawed)]
    for heading, table in page.tables.items():
        parts += [f"## {heading}\n"] if heading else []
        parts.append((thawed / "redrawn" / f"{table}.md").read_text().strip() + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    drawn = Path(sys.argv[1])
    for each in PAGES:
        (DOCS / each.path).write_text(text(each, drawn / each.record))
    for name, (record, figure) in FIGURES.items():
        shutil.copy(drawn / record / "redrawn" / f"{figure}.png", DOCS / "figures" / f"{name}.png")
    engines.draw(DOCS / "figures" / "engines.png")
