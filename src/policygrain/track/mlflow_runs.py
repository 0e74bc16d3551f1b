"""Runs in MLflow: one per seed, and one per arm with the means over its seeds; each point is logged once.

They are not nested, because MLflow folds nested runs and hides their charts. A run is identified by its key (study,
arm, seed) and the digest of its settings and inputs. Steps are logged in order, each in one request with a metric that
every step has, and its last point says where to continue. Points of a repeated request are equal, and MLflow ignores
them.
"""

from __future__ import annotations

import contextlib
import getpass
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..provenance import commit
from ..results.schema import RunConfig
from ..study import Study
from ..text import flat
from .points import CURSOR, Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

BATCH = 1000  # maximum number of metrics per request
KEY, CONTENT = "policygrain.key", "policygrain.content"
COMPLETE = "policygrain.complete"  # the digest of all that was logged; absent while something is missing


class Opened(NamedTuple):
    """A run in MLflow; ``complete`` is the digest of its content, once all of it is logged."""

    id: str
    status: str
    complete: str | None
    tags: dict[str, str]
    params: dict[str, str]


def open_run(
    client: MlflowClient,
    experiment: str,
    key: str,
    name: str,
    content: str,
    tags: dict[str, str],
    *,
    complete: str | None = None,
    started: float | None = None,
) -> Opened:
    """The run with this key and content, created if there is none; runs with other content are deleted.

    Points cannot be removed from a run, so a run that is complete with another digest than ``complete`` is deleted, too
    (MLflow keeps it as a deleted run). ``started`` is in seconds since 1970, now by default.
    """

    def with_key() -> list[MlflowRun]:
        return list(client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", order_by=["attributes.start_time ASC"]))

    def fits(run: MlflowRun) -> bool:
        there = run.data.tags.get(COMPLETE)
        return run.data.tags.get(CONTENT) == content and (complete is None or there in (None, complete))

    runs = with_key()
    if not any(map(fits, runs)):
        start = int(1000 * (started or time.time()))
        client.create_run(experiment, start_time=start, run_name=name, tags={KEY: key, CONTENT: content, **tags})
        # If the server stopped before its answer, the client's retry may have created a second run.
        runs = with_key()
    same = [run for run in runs if fits(run)]
    chosen = next((run for run in same if COMPLETE in run.data.tags), same[0])
    for other in runs:
        if other is not chosen:
            client.delete_run(other.info.run_id)
    about = chosen.data
    return Opened(str(chosen.info.run_id), chosen.info.status, about.tags.get(COMPLETE), about.tags, about.params)


def open_arm(client: MlflowClient, experiment: str, study: Study, arm: str, content: str) -> Opened:
    """The run of an arm, with the means over its seeds, whose digest is ``content``."""
    tags = {**_common_tags(study, arm), "grain.role": "method"}
    return open_run(client, experiment, f"{study.name}/{arm}", arm, content, tags)


def open_seed(client: MlflowClient, experiment: str, study: Study, config: RunConfig, **options: Any) -> Opened:
    """The run of a seed, with its parameters."""
    arm, seed = config.arm, config.seed
    source = f"policygrain train --arm {arm} --seed {seed}"
    tags = {
        **_common_tags(study, arm),
        "seed": str(seed),
        "grain.role": "seed",
        "mlflow.source.name": source,
        "mlflow.note.content": f"Seed {seed} of `{arm}` in the study `{study.name}`.",
    }
    opened = open_run(
        client, experiment, f"{study.name}/{arm}/{seed}", f"{arm} seed {seed}", config.key, tags, **options
    )
    if opened.complete is None:
        parameters = {**flat(config.method, "method"), **flat(config.training, "training"), "seed": seed}
        # A run may be resumed with other settings that change no result, and MLflow refuses to change parameters.
        new = {name: value for name, value in parameters.items() if name not in opened.params}
        client.log_batch(opened.id, params=params(new))
    return opened


def last_step(client: MlflowClient, run_id: str) -> int:
    """The last step of a run that is in MLflow; -1 if there is none."""
    return max((point.step for point in client.get_metric_history(run_id, CURSOR)), default=-1)


def log_steps(client: MlflowClient, run_id: str, steps: Iterable[list[Point]]) -> None:
    """Log the points of some steps; those of one step in one request."""
    waiting: list[Point] = []
    for points in steps:
        if len(waiting) + len(points) > BATCH:
            log_points(client, run_id, waiting)
            waiting = []
        waiting += points
    log_points(client, run_id, waiting)


def log_points(client: MlflowClient, run_id: str, points: list[Point]) -> None:
    """Log points, in as few requests as possible."""
    from mlflow.entities import Metric

    metrics = [Metric(p.name, p.value, p.time, p.step) for p in points]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + BATCH])


def set_status(client: MlflowClient, run_id: str, status: str, ended: float | None = None) -> None:
    """RUNNING, FINISHED, FAILED or KILLED; ``ended`` is in seconds since 1970."""
    if status == "RUNNING":
        client.update_run(run_id, status=status)
    else:
        client.set_terminated(run_id, status, None if ended is None else int(1000 * ended))


def params(values: dict[str, Any]) -> list[Any]:
    """Parameters as MLflow takes them: texts of at most 500 characters."""
    from mlflow.entities import Param

    return [Param(key, str(value)[:500]) for key, value in values.items()]


def _common_tags(study: Study, arm: str) -> dict[str, str]:
    head = commit()
    git = {"mlflow.source.git.commit": head.rstrip("+"), "mlflow.source.git.dirty": str(head.endswith("+"))}
    return {
        "study": study.name,
        "arm": arm,
        "method": arm.partition("+")[0],
        "mlflow.user": _user(),
        "mlflow.source.type": "LOCAL",
        **(git if head else {}),
    }


def _user() -> str:
    """The user's name; empty in a container whose user has none."""
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return ""
