"""Numbers per seed by one parameter of a method, for the figures `block_size` and `future_weight`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..analysis import accuracy
from ..analysis.statistics import Interval, over_seeds
from ..errors import UserError
from ..results.reader import StudyResults
from .forest import PLAIN
from .requirements import block_arms


def arms_by(results: StudyResults, parameter: str) -> dict[float, str]:
    """Parameter value → arm, as in `block_arms`. UserError if there are fewer than two."""
    found = block_arms(results.study, parameter)
    if len(found) < 2:
        raise UserError(f"at least two arms that differ in block.{parameter} must be trained and evaluated.")
    return found


def accuracy_interval(results: StudyResults, arm: str) -> Interval:
    """Accuracy of an arm in percent, mean over benchmarks, with the interval of the results table."""
    found = accuracy([results.scores(arm, b) for b in results.benchmarks])
    return Interval(*(100 * value for value in (found.mean, found.low, found.high)))


def against(
    axes: Axes,
    arms: Mapping[float, str],
    read: Callable[[str], pd.Series],
    equidistant: bool = False,
    interval: Callable[[str], Interval] | None = None,
) -> None:
    """Draw mean and 95% interval over seeds, and seeds as small marks; ``equidistant``: values at equal distances.

    ``interval`` of an arm is by default that of the numbers that ``read`` returns.
    """
    style = PLAIN
    x = np.arange(len(arms)) if equidistant else np.array(list(arms))
    values = [read(arm).to_numpy(dtype=float) for arm in arms.values()]
    intervals = [over_seeds(v) for v in values] if interval is None else [interval(arm) for arm in arms.values()]
    rows = np.array(intervals)
    errors = np.array([rows[:, 0] - rows[:, 1], rows[:, 2] - rows[:, 0]]).clip(min=0)
    axes.errorbar(x, rows[:, 0], yerr=errors, markersize=4, linewidth=1.1, elinewidth=0.8, capsize=2, **style)
    for position, seeds in zip(x, values, strict=True):
        axes.plot(np.full(len(seeds), position), seeds, "_", color=style["color"], markersize=5, alpha=0.6)
    axes.set_xticks(x, [f"{value:g}" for value in arms])
