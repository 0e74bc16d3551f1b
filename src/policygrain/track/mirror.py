"""Records → MLflow: an experiment per study, a parent run per method, a child run per seed.

Mirroring is idempotent: runs are identified by a tag with their key, and the time stamp of a metric is its step, so
MLflow ignores points that it already has, such as those of a repeated request. Points cannot be removed from a run, so
a run whose records have changed is deleted (MLflow keeps it as a deleted run) and created again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .. import digests
from ..errors import UserError
from ..progress import Progress
from ..results.reader import StudyResults
from ..results.schema import TrackingRecord
from ..text import redacted
from .points import Finished, curves, finished, mean_curves, some_samples

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun

SQLITE = "sqlite:///"
BATCH = 1000  # maximum number of metrics per call
ATTEMPTS = 5
KEY, CONTENT = "policygrain.key", "policygrain.content"


def tracking_uri(results: StudyResults) -> str:
    """The URI of the study file, else MLFLOW_TRACKING_URI, else a SQLite file next to the results of the study."""
    store = results.folder.path.parent.resolve() / "mlflow.db"
    return results.study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store}"


def _reason(error: Exception, uri: str) -> str:
    """The first line of an error's message without what ``uri`` keeps secret."""
    text = redacted(str(error).strip().split("\n")[0].replace(uri, redacted(uri)))
    found = re.search(r"://[^/:]*:(.*)@", uri)
    for secret in filter(None, {found[1], unquote(found[1])} if found else ()):
        text = text.replace(secret, "***")
    return text


def mirror(results: StudyResults) -> TrackingRecord:
    """Update MLflow from the records of a study; returns the experiment and run ids.

    MLflow's client retries requests without an answer for some minutes (MLFLOW_HTTP_REQUEST_MAX_RETRIES). After that
    UserError is raised; calling this again continues.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    uri = tracking_uri(results)
    attempt = 0
    while True:
        attempt, reached = attempt + 1, False
        try:
            with _store_lock(uri):
                client = mlflow.MlflowClient(uri)
                experiment = _experiment(client, results)
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
                f"tracking.uri: MLflow at {redacted(uri)} does not answer ({_reason(error, uri)}). The records in "
                f"{results.folder.path} are not affected."
            ) from None  # the cause may contain the password


@contextlib.contextmanager
def _store_lock(uri: str) -> Iterator[None]:
    """One process at a time creates a SQLite store, in a temporary file that is renamed when its tables are complete.

    UserError if the store was left incomplete by a process that created it in place.
    """
    if not uri.startswith(SQLITE):
        yield
        return
    store = Path(uri.removeprefix(SQLITE).partition("?")[0])
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.with_name(f".{store.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if store.exists() and not _is_complete(store):
            raise UserError(
                f"{store}: an MLflow store whose creation was interrupted. Remove it (it contains no run) and run the "
                "command again."
            )
        if not store.exists():
            _create(store)
        yield


def _create(store: Path) -> None:
    import mlflow

    temporary = store.with_name(f".{store.name}.creating")
    temporary.unlink(missing_ok=True)
    mlflow.MlflowClient(f"{SQLITE}{temporary}").search_experiments(max_results=1)
    temporary.rename(store)


def _is_complete(store: Path) -> bool:
    """Whether a SQLite file has all that MLflow's migrations create: their version is written last."""
    with contextlib.closing(sqlite3.connect(store)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return True  # an empty file, which MLflow fills
        return "alembic_version" in tables and bool(
            database.execute("SELECT version_num FROM alembic_version").fetchall()
        )


def _mirror(client: MlflowClient, experiment: str, results: StudyResults) -> dict[str, str]:
    study, matrix = results.study, results.matrix
    parents: dict[str, str] = {}
    by_arm = matrix.by_arm()
    # In reverse order: MLflow shows the newest runs first, which should be the headline methods.
    for arm, runs in Progress(reversed(by_arm.items()), "arms in MLflow", len(by_arm)):
        tags = {"study": study.name, "arm": arm, "method": matrix.arms[arm].method_name}
        records = [record for run in runs if (record := finished(results, run)) is not None]
        if records:
            parents[arm] = _mirror_arm(client, experiment, results, arm, tags, records)
    key = f"{study.name}/report"
    report, _ = _open(client, experiment, key, "figures and tables", content="drawn", tags={"study": study.name})
    for path in (results.folder.figure("any").parent, results.folder.table("any").parent):
        if path.is_dir():
            client.log_artifacts(report, str(path), path.name)
    client.set_terminated(report)
    return parents


def _experiment(client: MlflowClient, results: StudyResults) -> str:
    name = results.study.name
    found = client.get_experiment_by_name(name)
    if found is None:
        local = client.tracking_uri.startswith("sqlite")
        location = (results.folder.path.parent / "mlflow-artifacts" / name).resolve().as_uri() if local else None
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except Exception:
            # Created in the meantime by another process, or by a request whose answer was lost.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _open(
    client: MlflowClient, experiment: str, key: str, name: str, content: str, tags: dict[str, str]
) -> tuple[str, bool]:
    """(id of the run with this key and content, whether it is complete); created if there is none."""

    def with_key() -> list[MlflowRun]:
        return list(client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", order_by=["attributes.start_time ASC"]))

    found = with_key()
    if not any(run.data.tags.get(CONTENT) == content for run in found):
        client.create_run(experiment, run_name=name, tags={KEY: key, CONTENT: content, **tags})
        # If the server stopped before its answer, the client's retry may have created a second run.
        found = with_key()
    same = [run for run in found if run.data.tags.get(CONTENT) == content]
    kept = next((run for run in same if run.info.status == "FINISHED"), same[0])
    for other in found:
        if other is not kept:
            client.delete_run(other.info.run_id)
    return str(kept.info.run_id), kept.info.status == "FINISHED"


def _mirror_arm(
    client: MlflowClient,
    experiment: str,
    results: StudyResults,
    arm: str,
    tags: dict[str, str],
    records: Sequence[Finished],
) -> str:
    """Mirror an arm: the parent run with means over seeds, and a child run per seed. Returns the id of the parent."""
    content = digests.of_text("".join(record.content for record in records))
    tags = {**tags, "grain.role": "method", "seeds": str(len(records))}
    parent, complete = _open(client, experiment, f"{results.study.name}/{arm}", arm, content, tags)
    if not complete:
        client.log_batch(parent, params=_params(_flat("method", records[0].summary.method)))
        _log(client, parent, mean_curves(records))
    for record in records:
        _mirror_run(client, experiment, results, record, {**tags, "mlflow.parentRunId": parent})
    client.set_terminated(parent)
    return parent


def _mirror_run(
    client: MlflowClient, experiment: str, results: StudyResults, record: Finished, tags: dict[str, str]
) -> None:
    """Mirror the run of one seed: parameters, metrics, scores, artefacts. Does nothing if it is complete."""
    from mlflow.entities import RunTag

    study, run, summary, folder = results.study, record.run, record.summary, record.folder
    tags = {**tags, "seed": str(run.seed), "grain.role": "seed"}
    key, content = f"{study.name}/{run.arm}/{run.seed}", record.content + "/model" * study.tracking.log_models
    run_id, complete = _open(client, experiment, key, f"{run.arm} seed {run.seed}", content, tags)
    if complete:
        # The parent may be a new run: with another seed, the means are different.
        client.set_tag(run_id, "mlflow.parentRunId", tags["mlflow.parentRunId"])
        return
    parameters = {**_flat("method", summary.method), **_flat("training", summary.training), "seed": run.seed}
    made_with = summary.environment
    marks = [RunTag("commit", made_with.commit), RunTag("hardware", made_with.hardware)]
    client.log_batch(run_id, params=_params(parameters), tags=marks)
    _log(client, run_id, curves(record))
    for path in (folder.summary, folder.metrics, folder.timings):
        client.log_artifact(run_id, str(path))
    if record.evaluation:
        client.log_artifacts(run_id, str(folder.evaluation.path), folder.evaluation.path.name)
        # MLflow shows this as a table, and compares it between runs.
        client.log_table(run_id, some_samples(record), "samples.json")
    if study.tracking.log_models:
        from .model import log_model

        log_model(client, run_id, folder.model)
    client.set_terminated(run_id)


def _log(client: MlflowClient, run_id: str, points: Iterator[tuple[str, int, float]]) -> None:
    """Log (name, step, value). The step is also the time stamp, so that MLflow ignores repeated points."""
    from mlflow.entities import Metric

    metrics: list[Metric] = [Metric(name, value, step, step) for name, step, value in points]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + BATCH])


def _params(values: dict[str, Any]) -> list[Any]:
    from mlflow.entities import Param

    return [Param(key, str(value)[:500]) for key, value in values.items()]


def _flat(prefix: str, data: Any) -> dict[str, Any]:
    """Nested data with dotted keys."""
    if isinstance(data, dict):
        return {k: v for key, value in data.items() for k, v in _flat(f"{prefix}.{key}", value).items()}
    return {prefix: data}
