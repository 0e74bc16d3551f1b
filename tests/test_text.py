"""Texts: tables in their forms, and one merge for studies and methods."""

import json
from pathlib import Path

import pytest
import yaml

from policygrain.merging import merge
from policygrain.text import columns, latex_table, markdown_table

MERGED = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())["merged"]


def test_tables():
    header, rows = ["arm", "n", "gain"], [["a_b", "3", "**-1.5**"], ["x|y", "10", "±2"]]
    assert columns(rows, header, "lr") == ["arm      n      gain", "a_b      3  **-1.5**", "x|y     10        ±2"]
    body = ["| arm | n | gain |", "|---|---:|---:|", "| a_b | 3 | **-1.5** |", r"| x\|y | 10 | ±2 |", ""]
    assert markdown_table(header, rows, "lr").split("\n") == body
    lines = [" ".join(line.split()) for line in latex_table(header, rows, "lr").splitlines()]
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[4:6] == [r"a\_b & 3 & \textbf{$-$1.5} \\", r"x|y & 10 & $\pm$2 \\"]


@pytest.mark.parametrize(("below", "above", "merged"), MERGED)
def test_merging(below, above, merged):
    before = json.dumps([below, above])
    assert merge(below, above) == merged == merge(merged, above) and merge(below, {}) == below
    assert json.dumps([below, above]) == before


def test_keys_that_are_replaced_as_a_whole():
    below, above = {"x": {"a": 1}, "y": {"a": 1}}, {"x": {"b": 2}, "y": {"b": 2}}
    assert merge(below, above, replace=("x",)) == {"x": {"b": 2}, "y": {"a": 1, "b": 2}}
