"""One parameter of a method against a number per seed: the shape of `block_size` and `future_weight`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..analysis import accuracy
from ..analysis.statistics import Interval, over_seeds
from ..errors import UserError
from ..results.reader import StudyResults
from .requirements import block_arms
from .style import look


def arms_by(results: StudyResults, parameter: str) -> dict[float, str]:
    """Value of a block ratio's parameter → arm, of the evaluated arms whose other settings are MPO's."""
    found = block_arms(results.study, parameter)
    if len(found) < 2:
        raise UserError(f"at least two arms that differ in block.{parameter} have to be trained and evaluated.")
    return found


def accuracy_interval(results: StudyResults, arm: str) -> Interval:
    """Accuracy of an arm in percent, mean over benchmarks, with the interval of the results table."""
    found = accuracy([results.scores(arm, b) for b in results.benchmarks])
    return Interval(*(100 * value for value in (found.mean, found.low, found.high)))


def against(
    axes: Axes,
    arms: Mapping[float, str],
    read: Callable[[str], pd.Series],
    index: int,
    places: bool = False,
    interval: Callable[[str], Interval] | None = None,
) -> None:
    """Mean with 95% interval over seeds, and each seed as a small mark; ``places`` puts values at equal distances.

    ``interval`` of an arm is by default that of the numbers that ``read`` returns.
    """
    style = look(index)
    x = np.arange(len(arms)) if places else np.array(list(arms))
    values = [read(arm).to_numpy(dtype=float) for arm in arms.values()]
    intervals = [over_seeds(v) for v in values] if interval is None else [interval(arm) for arm in arms.values()]
    rows = np.array(intervals)
    errors = np.array([rows[:, 0] - rows[:, 1], rows[:, 2] - rows[:, 0]]).clip(min=0)
    axes.errorbar(x, rows[:, 0], yerr=errors, markersize=4, linewidth=1.1, elinewidth=0.8, capsize=2, **style)
    for place, seeds in zip(x, values, strict=True):
        axes.plot(np.full(len(seeds), place), seeds, "_", color=style["color"], markersize=5, alpha=0.6)
    axes.set_xticks(x, [f"{value:g}" for value in arms])
