"""How often 95% intervals hold the truth: simulated accuracies of an arm, and paired differences of two arms.

A response to a problem is correct with probability sigmoid(seed + problem): a training seed shifts the log-odds by a
normal number with standard deviation `sd`, problems are of fixed difficulty. The truth is the mean over all seeds.

    python benchmarks/coverage.py [--draws 20000] [--processes 1] [--out benchmarks/coverage.json]

Prints JSON: for each cell the share of intervals that hold the truth. A cell is an edge where fewer than `edge` correct
(or incorrect) answers are expected of all seeds together: counts are so few there that no interval is close to 95%
everywhere.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtri

from policygrain.analysis.statistics import accuracy_limits, difference_limits
from policygrain.files import atomic_text

SEEDS = (2, 3, 5, 8, 16)
DESIGNS = ((60,), (200,), (40, 40, 40))  # problems of each benchmark
ACCURACIES = (0, 0.5, 1, 2, 5, 10, 20, 50, 80, 95, 99, 100)
CHANGES = (0, 2)  # points by which the second arm is worse
SPREADS = (0.0, 0.25)  # standard deviation of seeds, in log-odds; 0.25 is 6 points of accuracy at 50%
SKEWED, SKEWED_DESIGN = 0.5, (200,)  # seeds so different that their accuracies are not normal near 5% and 95%
DIFFICULTY = 1.0  # standard deviation of problems, in log-odds
EDGE = 20  # expected answers
CHUNK = 500_000  # answers drawn at once


class Cell(NamedTuple):
    """What is simulated; `change` is None for the accuracy of one arm."""

    seeds: int
    problems: tuple[int, ...]
    accuracy: float  # percent
    sd: float
    change: float | None = None

    @property
    def edge(self) -> bool:
        """Whether fewer than `EDGE` answers decide."""
        shares = [self.accuracy / 100, (self.accuracy - (self.change or 0)) / 100]
        return self.seeds * sum(self.problems) * min(min(p, 1 - p) for p in shares) < EDGE


def tables() -> Iterator[list[Cell]]:
    """All cells, those that differ in seeds and accuracy together."""
    designs = [(problems, sd) for problems in DESIGNS for sd in SPREADS]
    for problems, sd in [*designs, (SKEWED_DESIGN, SKEWED)]:
        for change in (None, *CHANGES):
            yield [
                Cell(n, problems, share, sd, change) for n in SEEDS for share in ACCURACIES if share >= (change or 0)
            ]


def coverage(cell: Cell, draws: int) -> float:
    """The share of intervals that hold the truth."""
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    size = max(1, min(draws, CHUNK // (cell.seeds * sum(cell.problems))))
    held, done = 0, 0
    truth = (cell.accuracy if cell.change is None else cell.change) / 100
    while done < draws:
        now = min(size, draws - done)
        if cell.change is None:
            _, low, high = accuracy_limits(_scores(cell, cell.accuracy, _shifts(cell, now, rng), rng))
        else:
            shared = _shifts(cell, now, rng)
            arms = [
                _scores(cell, level, (shared + _shifts(cell, now, rng)) / np.sqrt(2), rng)
                for level in (cell.accuracy, cell.accuracy - cell.change)
            ]
            _, low, high = difference_limits([a - b for a, b in zip(*arms, strict=True)])
        held += int(((low <= truth + 1e-9) & (truth <= high + 1e-9)).sum())
        done += now
    return held / draws


def _shifts(cell: Cell, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return cell.sd * rng.standard_normal((draws, cell.seeds))


def _scores(
    cell: Cell, percent: float, shifts: NDArray[np.float64], rng: np.random.Generator
) -> list[NDArray[np.float64]]:
    """Scores [draws, seeds, problems] of each benchmark, whose expectation over seeds is ``percent``."""
    found = []
    for problems in cell.problems:
        shape = (*shifts.shape, problems)
        if percent in (0, 100):
            found.append(np.full(shape, percent / 100))
            continue
        log_odds = _log_odds(percent / 100, cell.sd, problems)
        # u < sigmoid(seed + problem), with an exponential per seed and per problem only
        odds = np.exp(-shifts).astype(np.float32)[..., None] * np.exp(-log_odds).astype(np.float32)
        odds += 1
        odds *= rng.random(shape, dtype=np.float32)
        found.append((odds < 1).astype(float))
    return found


def _log_odds(share: float, sd: float, problems: int) -> NDArray[np.float64]:
    """Log-odds of each problem at the mean seed, such that all seeds have the accuracy ``share`` in expectation."""
    difficulty = DIFFICULTY * ndtri((np.arange(problems) + 0.5) / problems)
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)

    def missing(shift: float) -> float:
        chances = expit(shift + difficulty + sd * nodes[:, None])
        return float(weights @ chances.mean(1) / weights.sum()) - share

    return difficulty + brentq(missing, logit(share) - 10, logit(share) + 10)


def simulate(draws: int, processes: int) -> dict[str, Any]:
    """Coverage by table, number of seeds and accuracy in percent; edges apart."""
    found: list[dict[str, Any]] = []
    every = list(tables())
    with ProcessPoolExecutor(processes) as pool:
        cells_in_order = [cell for cells in every for cell in cells]
        of = dict(zip(cells_in_order, pool.map(coverage, cells_in_order, repeat(draws)), strict=True))
    for cells in every:
        first = cells[0]
        shares: dict[str, dict[str, dict[str, float]]] = {"inner": {}, "edges": {}}
        for cell in cells:
            kind = shares["edges" if cell.edge else "inner"]
            kind.setdefault(str(cell.seeds), {})[f"{cell.accuracy:g}"] = round(of[cell], 4)
        found.append({"problems": list(first.problems), "sd": first.sd, "change": first.change, **shares})
    return {"draws": draws, "edge": EDGE, "skewed": SKEWED, "tables": found}


def main() -> None:
    """Prints the table, or writes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = simulate(arguments.draws, arguments.processes)
    if arguments.out:
        atomic_text(arguments.out, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    else:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
