"""Aligned columns and Markdown tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from policygrain.text import columns, markdown_table

WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)
TABLES = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(WORDS, min_size=n, max_size=n),
        st.lists(st.lists(WORDS, min_size=n, max_size=n), max_size=5),
        st.text("lr", max_size=n),
    )
)


def test_the_last_letter_holds_for_the_columns_after_it() -> None:
    rows = [("a", "1", "2"), ("bb", "33", "44")]
    assert columns(rows, align="lr") == ["a    1   2", "bb  33  44"]
    assert columns(rows) == ["a   1   2", "bb  33  44"]
    assert columns([]) == [] and columns([], ("a", "b")) == ["a  b"]


@given(TABLES)
def test_every_cell_is_in_its_column(table: tuple[list[str], list[list[str]], str]) -> None:
    header, rows, align = table
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    starts = [sum(widths[:i]) + 2 * i for i in range(len(widths))]
    for line, cells in zip(columns(rows, header, align), [header, *rows], strict=True):
        for cell, start, width in zip(cells, starts, widths, strict=True):
            assert line[start : start + width].strip() == cell


@given(TABLES)
def test_markdown_is_read_back(table: tuple[list[str], list[list[str]], str]) -> None:
    """CommonMark with tables finds as many cells as there are, whatever pipes they hold."""
    header, rows, align = table
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown_table(header, rows, align))
    kinds = [token.type for token in tokens]
    assert kinds.count("th_open") == len(header) and kinds.count("td_open") == len(header) * len(rows)
    right = [token for token in tokens if token.type == "th_open" and "right" in str(token.attrs.get("style", ""))]
    assert len(right) == (align or "l").ljust(len(header), (align or "l")[-1])[: len(header)].count("r")
