"""Initial models of a study's runs: which runs share one, and the identity of pretrained ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .paths import StudyFolder
from .records import RunConfig
from .study import Study
from .study.runs import run_matrix
from .study.stages import start_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def share_starts(study: Study) -> bool:
    """Whether several seeds begin from each of several initial models, which are then the units of replication."""
    if study.model.starts is None:  # each seed has its own
        return False
    seeds = {run.seed for run in run_matrix(study).runs}
    return 1 < len({start_seed(study, seed) for seed in seeds}) < len(seeds)


def by_unit(study: Study, seeds: Iterable[Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values [seeds, ...] averaged over seeds that share an initial model, since these are not independent.

    Returns [units, ...]. Where all runs begin from one initial model, each seed is a unit, and intervals are over
    training seeds for this initial model.
    """
    import numpy as np

    if not share_starts(study):
        return values
    starts = np.array([start_seed(study, int(seed)) for seed in seeds])
    return np.array([values[starts == start].mean(axis=0) for start in np.unique(starts)])


def check_one_start(study: Study, folder: StudyFolder, runs: Mapping[str, RunConfig]) -> None:
    """UserError if runs, by their names, began from different models that had the same name."""
    began = {config.inputs.start_model: name for name, config in runs.items()}
    if study.model.start != "tiny" and len(began) > 1:
        (one, first), (other, second), *_ = began.items()
        raise UserError(
            f"{folder.path}: model.start: {study.model.start!r} has changed: {first} began from {one}, {second} from "
            f"{other}. Run `snakemake all`."
        )
