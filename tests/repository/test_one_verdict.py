"""A comparison has one verdict: where a page shows it in bold, its study decides it, and nowhere else."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from zipfile import ZipFile

import pytest

from ..conftest import ROOT

pytestmark = pytest.mark.release
Cell = tuple[str, str, str]  # record, an arm, and the one that it is compared with
AGAIN = "turns-replicate"
RATES = ("0.0002", "0.0004")


def decided(record: str) -> dict[tuple[str, str], bool]:
    """Both arms of each comparison → whether it is decided among all of its study."""
    with ZipFile(ROOT / "docs" / "records" / f"{record}.zip") as archive:
        rows = csv.DictReader(io.StringIO(archive.read("tables/findings.csv").decode()))
    return {(row["of"], row["than"]): row["finding"] == "differ" for row in rows}


def rows(page: str, block: str) -> list[list[str]]:
    """The cells of a generated table, the header first."""
    text = (ROOT / "docs" / page).read_text()
    table = re.search(rf"<!-- generated: {block} -->\n\n(.*?)\n\n", text, flags=re.S)
    assert table is not None
    header, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines())
    return [header, *lines]


def at(settings: str) -> Callable[[str], str]:
    """The arm of a method with these settings, of which 2e-4 is the studies' own learning rate."""
    return lambda method: f"{method}+{settings}".replace("+learning_rate=0.0002", "")


def of_turns(columns: Sequence[tuple[str, str]]) -> Callable[[list[str]], list[Cell]]:
    """``columns``: record and settings of each."""

    def cells(row: list[str]) -> list[Cell]:
        pair = [name.strip().replace(" ", "_") for name in row[0].split("−")]
        return [(record, *map(at(settings), pair)) for record, settings in columns]  # type: ignore[misc]

    return cells


PAIRS = {
    "token − none": ("token", "none"),
    "block − none": ("block", "none"),
    "sequence − none": ("sequence", "none"),
    "product − none": ("product", "none"),
    "token: clip − no clip": ("token_clip", "token"),
    "block − token, clipped": ("block_clip", "token_clip"),
    "sequence − token, clipped": ("sequence_clip", "token_clip"),
    "block, clip − none": ("block_clip", "none"),
}


def of_sets(row: list[str]) -> list[Cell]:
    arm = at(f"ahead={row[0]}+learning_rate={row[1]}")
    return [(record, *map(arm, PAIRS[row[2]])) for record in ("", "laptop", "earlier/laptop-loop")]  # type: ignore[misc]


OLDER = ("token − none", "block − none", "sequence − none", "token: clip − no clip", "block, clip − none")


def of_older(record: str) -> Callable[[list[str]], list[Cell]]:
    """The area has verdicts, and accuracy at the end has none. The first difference is of the ages alone."""

    def cells(row: list[str]) -> list[Cell]:
        arm, shown = at(f"ahead={row[0]}+learning_rate={row[1]}"), record if row[2] == "area" else ""
        fresh = arm("none").replace(f"+ahead={row[0]}", "")
        pairs = [PAIRS[name] for name in (*OLDER, "block − token, clipped")]
        return [(shown, arm("none"), fresh), *((shown, arm(of), arm(than)) for of, than in pairs)]

    return cells


TABLES: dict[tuple[str, str], tuple[int, Callable[[list[str]], list[Cell]]]] = {  # first column of differences, cells
    ("turns.md", "turns-without-clip"): (1, of_turns([(r, f"ahead={a}") for a in (16, 48) for r in ("turns", AGAIN)])),
    ("turns.md", "turns-with-clips"): (
        1,
        of_turns([(AGAIN, f"ahead={age}+learning_rate={rate}") for age in (16, 48) for rate in RATES]),
    ),
    ("turns.md", "turns-what-clips-do"): (1, of_turns([(AGAIN, f"ahead={age}") for age in (16, 48)])),
    ("turns.md", "turns-products"): (1, of_turns([(AGAIN, "ahead=16")])),
    ("phase.md", "phase-sets"): (3, of_sets),
    ("phase.md", "phase-older"): (4, of_older("phase-old")),
    ("phase.md", "phase-older-rates"): (4, of_older("phase-old-rates")),
}


@pytest.mark.parametrize(("page", "block"), TABLES)
def test_bold_is_what_the_study_decides(page: str, block: str) -> None:
    first, cells_of = TABLES[page, block]
    seen = 0
    for row in rows(page, block)[1:]:
        for text, (record, *arms) in zip(row[first:], cells_of(row), strict=True):
            bold = text.startswith("**")
            if not record:
                assert not bold, "the map has tables of its own, and accuracy at the end is not tested"
            else:
                assert bold == decided(record)[arms[0], arms[1]], (row[0], arms)
            seen += 1
    assert seen > 3
