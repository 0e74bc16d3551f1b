"""The figure of the exact cases, from the committed record."""

import numpy as np
import pytest

from policygrain.figures import cases
from policygrain.results.measurements import CasesRecord
from policygrain.results.schema import read_record

from ..conftest import ROOT


@pytest.fixture(scope="module")
def record():
    return read_record(CasesRecord, ROOT / "docs" / "cases.json", "Run `policygrain cases`.")


def test_the_first_column_names_every_ratio_and_marks_wrong_signs(record):
    figure = cases.draw(record)
    for row, case in enumerate(record.cases):
        axes = figure.axes[2 * row]
        found = [e for e in case.estimators if e.clip is None]
        assert [text.get_text() for text in axes.get_yticklabels()] == [e.name for e in found]
        crosses = {int(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "x"}
        assert crosses == {i for i, e in enumerate(found) if e.push * case.exact_push < 0}


def test_no_point_is_outside_its_panel(record):
    for axes in cases.draw(record).axes:
        (left, right), limits = axes.get_xlim(), sorted(axes.get_ylim())
        for line in axes.lines:
            if line.get_transform() == axes.transData:
                x, y = np.asarray(line.get_xydata(), dtype=float).T
                assert (left <= x).all() and (x <= right).all()
                assert (limits[0] <= y).all() and (y <= limits[1]).all()
