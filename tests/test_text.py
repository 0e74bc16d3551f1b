"""Texts: aligned columns, Markdown tables, and one merge for studies and methods."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from policygrain.merging import merge
from policygrain.text import columns, markdown_table

MERGED = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())["merged"]
WORDS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)
TABLES = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(WORDS, min_size=n, max_size=n),
        st.lists(st.lists(WORDS, min_size=n, max_size=n), max_size=5),
        st.text("lr", max_size=n),
    )
)


@given(TABLES)
def test_every_cell_is_in_its_column_and_markdown_is_read_back(table):
    """CommonMark with tables finds as many cells as there are, whatever pipes they hold."""
    header, rows, align = table
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    starts = [sum(widths[:i]) + 2 * i for i in range(len(widths))]
    for line, cells in zip(columns(rows, header, align), [header, *rows], strict=True):
        for cell, start, width in zip(cells, starts, widths, strict=True):
            assert line[start : start + width].strip() == cell
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown_table(header, rows, align))
    kinds = [token.type for token in tokens]
    assert kinds.count("th_open") == len(header) and kinds.count("td_open") == len(header) * len(rows)
    right = [token for token in tokens if token.type == "th_open" and "right" in str(token.attrs.get("style", ""))]
    assert len(right) == (align or "l").ljust(len(header), (align or "l")[-1])[: len(header)].count("r")


@pytest.mark.parametrize(("below", "above", "merged"), MERGED)
def test_merging(below, above, merged):
    before = json.dumps([below, above])
    assert merge(below, above) == merged == merge(merged, above) and merge(below, {}) == below
    assert json.dumps([below, above]) == before


def test_keys_that_are_replaced_as_a_whole():
    below, above = {"x": {"a": 1}, "y": {"a": 1}}, {"x": {"b": 2}, "y": {"b": 2}}
    assert merge(below, above, replace=("x",)) == {"x": {"b": 2}, "y": {"a": 1, "b": 2}}
