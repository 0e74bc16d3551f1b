"""The run that a folder belongs to: its record, whether it has ended, and moving the files of another run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .. import digests
from ..errors import UserError
from ..files import atomic_json, read_json
from ..results.layout import DataFolder, RunFolder
from ..results.reader import run_summary
from ..results.schema import RunConfig, RunInputs
from ..study.fingerprint import Fingerprints
from ..train.start_model import check_start_model

if TYPE_CHECKING:
    from ..study import Study
    from ..study.runs import Arm


def run_config(study: Study, arm: Arm, seed: int, start: str, data: DataFolder) -> RunConfig:
    """The record of everything that the result of a run depends on, with the digest of it as key."""
    settings = Fingerprints(study).run_settings(arm, seed)
    inputs = RunInputs(
        start_model=check_start_model(Path(start), study.model.revision),
        train=digests.of_file(data.train),
        validation=digests.of_file(data.validation),
    )
    return RunConfig(
        key=digests.of_json([arm.name, settings, inputs.model_dump()]),
        arm=arm.name,
        seed=seed,
        settings=settings,
        method=arm.method(study).data(),
        training=arm.training(study).model_dump(mode="json"),
        inputs=inputs,
    )


def claim(run: RunFolder, config: RunConfig) -> None:
    """Move the files of another run, if the folder contains one, to `superseded-KEY-N`.

    The target folder is recorded before the first file is moved, and `run.json` is moved last, so if the process is
    killed in between, the next call moves the rest.
    """
    _finish_superseding(run)
    previous_key = _key_of(run)
    if previous_key != config.key and any(product.exists() for product in run.products):
        aside = run.superseded(previous_key or "unknown")
        atomic_json(run.superseding, {"folder": aside.name})
        _finish_superseding(run)
        print(f"{run.path}: contained a run with other settings, which was moved to {aside}.", file=sys.stderr)


def _finish_superseding(run: RunFolder) -> None:
    if not run.superseding.exists():
        return
    aside = run.path / Path(read_json(run.superseding)["folder"]).name
    aside.mkdir(exist_ok=True)
    for product in run.products:
        if product.exists():
            product.rename(aside / product.name)
    run.superseding.unlink()


def _key_of(run: RunFolder) -> str | None:
    """The key of the run that a folder belongs to; None if it cannot be read."""
    try:
        record = json.loads(run.config.read_bytes())
        return str(record["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def has_ended(run: RunFolder, config: RunConfig) -> bool:
    """Whether the folder contains the summary and the final model of this run."""
    if not run.summary.exists():
        return False
    summary = run_summary(run)
    return summary.key == config.key and run.model.is_dir() and digests.of_model(run.model) == summary.model_digest


def check_final_model(run: RunFolder) -> str:
    """The digest of the final model of a run. UserError if it differs from the digest in the summary."""
    digest = digests.of_model(run.model)
    if run.summary.exists() and run_summary(run).model_digest != digest:
        raise UserError(
            f"{run.model}: its files are not those that {run.summary.name} names: one is changed or missing. Remove "
            f"{run.summary} and train the run again."
        )
    return digest
