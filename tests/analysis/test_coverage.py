"""Simulated coverage: a fast version of benchmarks/coverage.py, and the committed table of 20,000 draws."""

import itertools
import math

import numpy as np
import pytest

from policygrain.analysis import accuracy
from policygrain.files import read_json

from ..conftest import ROOT
from ..support.files import load_script

DRAWS = 2000
LOWEST, HIGHEST = 0.94, 0.965
ERROR = 4 * math.sqrt(0.05 * 0.95 / DRAWS)  # four standard errors of a simulated coverage: two points


CELLS = [
    *itertools.product((2, 3, 5, 8, 16), (2, 20, 50, 95), (0.0, 0.25), (None, 2)),
    *itertools.product((2, 16), (0, 0.5, 99.5, 100), (0.0,), (None,)),  # at the edges, at least as often
]


@pytest.fixture(scope="module")
def simulation():
    """benchmarks/coverage.py, which is no part of the package."""
    return load_script(ROOT / "benchmarks/coverage.py")


@pytest.mark.parametrize(("seeds", "percent", "sd", "change"), CELLS)
def test_intervals_hold_the_truth_as_often_as_they_say(seeds, percent, sd, change, simulation):
    cell = simulation.Cell(seeds, (60,), percent, sd, change)
    found = simulation.coverage(cell, DRAWS)
    assert found >= LOWEST - ERROR and cell.edge >= (not 1 < percent < 99)
    assert cell.edge or found <= HIGHEST + ERROR


def test_a_bootstrap_over_three_seeds_would_fail_this_test():
    """The test can tell: 95% intervals of resampled seeds hold the truth in about three of four studies."""
    rng = np.random.default_rng(0)
    seeds = 0.6 + 0.05 * rng.standard_normal((DRAWS, 3))
    means = seeds[:, rng.integers(0, 3, (1000, 3))].mean(-1)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    assert ((low <= 0.6) & (high >= 0.6)).mean() < LOWEST - ERROR


def test_the_interval_of_a_single_seed_is_about_its_problems():
    """200 problems drawn anew each time; the accuracy over all problems is 30%."""
    rng = np.random.default_rng(1)
    found = [accuracy([(rng.random((1, 200)) < 0.3).astype(float)]) for _ in range(DRAWS)]
    assert abs(np.mean([f.low <= 0.3 <= f.high for f in found]) - 0.95) < ERROR


def test_the_committed_table_is_of_twenty_thousand_draws_and_within_its_bounds():
    table = read_json(ROOT / "benchmarks/coverage.json")
    assert table["draws"] == 20_000
    error = 3 * math.sqrt(0.05 * 0.95 / table["draws"])  # half a point, over a thousand cells
    shown = set()
    for part in table["tables"]:
        for kind in ("inner", "edges"):
            shares = {(n, percent): share for n, row in part[kind].items() for percent, share in row.items()}
            shown |= set(shares)
            if part["sd"] != table["skewed"]:
                assert min(shares.values()) >= LOWEST - error, (kind, part)
                assert kind == "edges" or max(shares.values()) <= HIGHEST + error, part
    assert {(n, share) for n in ("2", "3", "5", "8", "16") for share in ("0", "1", "50", "99", "100")} <= shown
