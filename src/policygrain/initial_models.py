"""Initial models of a study's runs: which runs share one, and the identity of pretrained ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .hub import identity
from .paths import StudyFolder
from .records import RunConfig, read_record
from .study import Study
from .study.fingerprint import start_seed
from .study.runs import run_matrix

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


def start_identity(study: Study, folder: StudyFolder) -> str | None:
    """The digest of the initial model's folder, or its commit on the hub; None for tiny models.

    If the model is not available, the identity that runs in ``folder`` recorded; None if there are no runs.
    """
    if study.model.start == "tiny":
        return None
    try:
        return identity(study.model.start, study.model.revision, remembered=True)
    except UserError:
        runs = sorted(folder.path.glob("runs/*/*/run.json"))
        return read_record(RunConfig, runs[0], "Train the run again.").inputs.start_model if runs else None


def check_one_start(study: Study, folder: StudyFolder, runs: Mapping[str, RunConfig]) -> None:
    """UserError if runs, by their names, began from different models that had the same name."""
    began = {config.inputs.start_model: name for name, config in runs.items()}
    if study.model.start != "tiny" and len(began) > 1:
        (one, first), (other, second), *_ = began.items()
        raise UserError(
            f"{folder.path}: model.start: {study.model.start!r} has changed: {first} began from {one}, {second} from "
            f"{other}. Run `snakemake all`."
        )
