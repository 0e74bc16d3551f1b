"""Completes a study in MLflow from its records: an experiment per study, a run per seed, and a run per
method with the means over its seeds.

Runs that were followed while they trained (`follow.py`) are continued. Mirroring is idempotent: it can be interrupted
and repeated, and adds what is missing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import digests
from ..errors import UserError
from ..progress import Progress
from ..provenance import versions
from ..results.job_state import run_status
from ..results.reader import StudyResults
from ..results.schema import TrackingRecord
from ..text import flat, redacted
from .mlflow_runs import (
    COMPLETE,
    Opened,
    last_step,
    log_points,
    log_steps,
    open_arm,
    open_run,
    open_seed,
    params,
    set_status,
)
from .points import Finished, finished, means, scores, some_samples, steps
from .store import connect, only_writer, reason, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from ..study import Study

ATTEMPTS = 5
MODEL = "model"  # the place of a logged model
REQUIRED = ("torch", "transformers")  # to load it


def mirror(results: StudyResults) -> TrackingRecord:
    """Update MLflow from the records of a study; returns the experiment and run ids.

    MLflow's client retries requests without an answer for some minutes (MLFLOW_HTTP_REQUEST_MAX_RETRIES). After that
    UserError is raised; calling this again continues.
    """
    uri = tracking_uri(results.folder, results.study)
    attempt = 0
    with only_writer(results.folder, wait=True):
        while True:
            attempt, reached = attempt + 1, False
            try:
                client, experiment = connect(results.folder, results.study)
                reached = True
                runs = _mirror(client, experiment, results)
                return TrackingRecord(uri=redacted(uri), experiment=experiment, runs=runs)
            except UserError:
                raise
            except Exception as error:  # MLflow and its database drivers have no common error class
                # The client does not retry a request whose answer was interrupted.
                if reached and attempt < ATTEMPTS:
                    continue
                raise UserError(
                    f"tracking.uri: MLflow at {redacted(uri)} does not answer ({reason(error, uri)}). The records in "
                    f"{results.folder.path} are not affected."
                ) from None  # the cause may contain the password


def _mirror(client: MlflowClient, experiment: str, results: StudyResults) -> dict[str, str]:
    study = results.study
    arms: dict[str, str] = {}
    by_arm = results.matrix.by_arm()
    # In reverse order: MLflow shows the newest runs first, which should be the headline methods.
    for arm, runs in Progress(reversed(by_arm.items()), "arms in MLflow", len(by_arm)):
        records = [record for run in runs if (record := finished(results, run)) is not None]
        if records:
            arms[arm] = _mirror_arm(client, experiment, results, arm, records)
    key = f"{study.name}/report"
    report = open_run(client, experiment, key, "figures and tables", "drawn", {"study": study.name}).id
    for path in (results.folder.figure("any").parent, results.folder.table("any").parent):
        if path.is_dir():
            client.log_artifacts(report, str(path), path.name)
    client.set_terminated(report)
    return arms


def _mirror_arm(
    client: MlflowClient, experiment: str, results: StudyResults, arm: str, records: Sequence[Finished]
) -> str:
    """Complete the run of each seed of an arm, and the run of the arm with their means, whose id is returned."""
    content = digests.of_text("".join(record.content for record in records))
    means_run = open_arm(client, experiment, results.study, arm, content)
    for record in records:
        _mirror_run(client, experiment, results, record)
    if means_run.complete is None:
        client.log_batch(means_run.id, params=params(flat(records[0].summary.method, "method")))
        log_steps(client, means_run.id, means(records))
        client.set_tag(means_run.id, "seeds", str(len(records)))
        client.set_tag(means_run.id, COMPLETE, content)
    if means_run.status != "FINISHED":
        client.set_terminated(means_run.id)
    return means_run.id


def _mirror_run(client: MlflowClient, experiment: str, results: StudyResults, record: Finished) -> None:
    """Complete the run of one seed. Does nothing if it is complete."""
    status = run_status(record.folder)
    content = record.content
    started = status.started if status else None
    opened = open_seed(client, experiment, results.study, record.summary, complete=content, started=started)
    if opened.complete is None:
        _log_run(client, opened, results.study, record)
        client.set_tag(opened.id, COMPLETE, content)
    if opened.status != "FINISHED":
        set_status(client, opened.id, "FINISHED", status.ended if status else None)


def _log_run(client: MlflowClient, opened: Opened, study: Study, record: Finished) -> None:
    """Log the missing parameters, metrics, scores and artefacts of a seed's run."""
    from mlflow.entities import RunTag

    summary, folder = record.summary, record.folder
    made_with = summary.environment
    tags = {"commit": made_with.commit, "hardware": made_with.hardware, "engine": made_with.engine}
    tags["mlflow.source.git.commit"] = made_with.commit.rstrip("+")
    tags["mlflow.source.git.dirty"] = str(made_with.commit.endswith("+"))
    client.log_batch(opened.id, tags=[RunTag(name, value) for name, value in tags.items()])
    log_steps(client, opened.id, steps(record, after=last_step(client, opened.id)))
    log_points(client, opened.id, scores(record))
    for path in (folder.summary, folder.metrics, folder.timings):
        client.log_artifact(opened.id, str(path))
    if record.evaluation:
        client.log_artifacts(opened.id, str(folder.evaluation.path), folder.evaluation.path.name)
        # MLflow shows this as a table, and compares it between runs.
        client.log_table(opened.id, some_samples(record), "samples.json")


def _log_model(client: MlflowClient, run_id: str, folder: Path) -> None:
    """Log the model in ``folder`` as `runs:/RUN_ID/model`, with its signature, so that MLflow can load and serve it.

    Prompts in, texts out. Logging it again writes the same files to the same place.
    """
    import mlflow.transformers
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = Schema([ColSpec(DataType.string)])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as work:
        mlflow.transformers.save_model(
            {"model": model, "tokenizer": tokenizer},
            str(Path(work) / MODEL),
            task="text-generation",
            signature=ModelSignature(inputs=text, outputs=text),
            # Without this list MLflow would load the model in another process to find its requirements.
            pip_requirements=[f"{name}=={version}" for name, version in versions().items() if name in REQUIRED],
        )
        client.log_artifacts(run_id, str(Path(work) / MODEL), MODEL)
