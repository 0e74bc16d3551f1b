"""An initial model that the pipeline does not build: its identity, and a check that all runs began from it."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UserError
from ..hub import identity
from ..study import Study
from .layout import StudyFolder
from .schema import RunConfig, read_record


def start_identity(study: Study, folder: StudyFolder) -> str | None:
    """The digest of the initial model's folder, or its commit on the hub; None for tiny models.

    For a model that is not available, the one recorded by the runs in ``folder``; None if there are none.
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
