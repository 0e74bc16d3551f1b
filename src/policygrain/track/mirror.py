"""Records → MLflow: an experiment per study, a parent run per method, a child run per seed.

Runs are found again by a tag with their key, and a metric's time stamp is its step, so mirroring twice (or a resumed
run) changes nothing: MLflow ignores a point that it has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import read_json, read_json_lines
from ..progress import Progress
from ..provenance import commit
from ..study.arms import Run, plan

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from ..study import Study

BATCH = 1000  # the most metrics that MLflow takes in one call
KEY, CONTENT = "policygrain.key", "policygrain.content"


def tracking_uri(study: Study, results: Path) -> str:
    """The study's own, else MLFLOW_TRACKING_URI, else a SQLite store beside the study's results."""
    return (
        study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{results.parent.resolve()}/mlflow.db"
    )


def mirror(study: Study, results: Path) -> None:
    """Bring MLflow up to date with the records under ``results``."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    uri = tracking_uri(study, results)
    try:
        client = mlflow.MlflowClient(uri)
        experiment = _experiment(client, study, results)
    except Exception as error:  # MLflow and its database drivers raise what they like
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"tracking.uri: MLflow at {uri} does not answer ({reason}). The records are safe in {results}."
        ) from error
    planned = plan(study)
    by_arm: dict[str, list[Run]] = {}
    for run in planned.runs:
        by_arm.setdefault(run.arm, []).append(run)
    # The last one first: MLflow shows the newest on top, and that should be the headline methods.
    for arm, runs in Progress(reversed(by_arm.items()), "arms in MLflow", len(by_arm)):
        shared = {"study": study.name, "arm": arm, "method": planned.arms[arm].method_name}
        finished = [run for run in runs if (results / run.folder / "summary.json").exists()]
        if not finished:
            continue
        parent = _run(client, experiment, key=f"{study.name}/{arm}", name=arm, tags=shared | {"grain.role": "method"})
        means: list[float] = []
        for run in finished:
            tags = shared | {"seed": str(run.seed), "mlflow.parentRunId": parent, "grain.role": "seed"}
            summary = read_json(results / run.folder / "summary.json")
            means.append(summary["final"]["validation_accuracy"])
            _mirror_run(client, experiment, study, results / run.folder, run, tags, summary)
        client.log_batch(parent, metrics=_metrics({"final_validation_accuracy": sum(means) / len(means)}))
        client.set_terminated(parent)
    report = _run(client, experiment, key=f"{study.name}/report", name="figures and tables", tags={"study": study.name})
    for folder in ("figures", "tables"):
        if (results / folder).is_dir():
            client.log_artifacts(report, str(results / folder), folder)
    client.set_terminated(report)


def _experiment(client: MlflowClient, study: Study, results: Path) -> str:
    found = client.get_experiment_by_name(study.name)
    if found is not None:
        return str(found.experiment_id)
    local = client.tracking_uri.startswith("sqlite")
    location = (results.parent / "mlflow-artifacts" / study.name).resolve().as_uri() if local else None
    return str(client.create_experiment(study.name, artifact_location=location))


def _run(client: MlflowClient, experiment: str, key: str, name: str, tags: dict[str, str]) -> str:
    """The run with this key, made where there is none."""
    found = client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
    run = found[0] if found else client.create_run(experiment, run_name=name, tags={KEY: key, **tags})
    return str(run.info.run_id)


def _mirror_run(
    client: MlflowClient,
    experiment: str,
    study: Study,
    folder: Path,
    run: Run,
    tags: dict[str, str],
    summary: dict[str, Any],
) -> None:
    """One seed: parameters, metrics by step, evaluation scores, artefacts. Nothing is done where nothing changed."""
    evaluation = (
        read_json(folder / "evaluation" / "records.json") if (folder / "evaluation" / "records.json").exists() else {}
    )
    content = f"{summary['key']}/{evaluation.get('key', '')}"
    run_id = _run(client, experiment, f"{study.name}/{run.arm}/{run.seed}", f"{run.arm} seed {run.seed}", tags)
    if client.get_run(run_id).data.tags.get(CONTENT) == content:
        return
    from mlflow.entities import Param, RunTag

    parameters = {**_flat("method", summary["method"]), **_flat("training", summary["training"]), "seed": run.seed}
    known = client.get_run(run_id).data.params
    fresh = [Param(k, str(v)[:500]) for k, v in parameters.items() if k not in known]
    marks = [RunTag("commit", summary["commit"] or commit()), RunTag("hardware", summary["hardware"])]
    client.log_batch(run_id, params=fresh, tags=marks)
    rows, timings = (read_json_lines(folder / f"{name}.jsonl") for name in ("metrics", "timings"))
    points = [point for row in rows + timings for point in _metrics(row, row["step"])]
    for record in evaluation.get("records", []):
        points += _metrics({f"test/{record['benchmark']}": record["accuracy"]}, rows[-1]["step"])
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])
    for name in ("summary.json", "metrics.jsonl", "timings.jsonl"):
        client.log_artifact(run_id, str(folder / name))
    if evaluation:
        client.log_artifacts(run_id, str(folder / "evaluation"), "evaluation")
    client.set_terminated(run_id)
    client.set_tag(run_id, CONTENT, content)


def _metrics(values: dict[str, Any], step: int = 0) -> list[Any]:
    """Points at one step. The step is also the time stamp: a point that is logged again is equal, and ignored."""
    from mlflow.entities import Metric

    return [Metric(k, float(v), step, step) for k, v in values.items() if k != "step" and isinstance(v, int | float)]


def _flat(prefix: str, data: Any) -> dict[str, Any]:
    """Nested data as dotted keys."""
    if isinstance(data, dict):
        return {k: v for key, value in data.items() for k, v in _flat(f"{prefix}.{key}", value).items()}
    return {prefix: data}
