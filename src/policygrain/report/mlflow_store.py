"""The MLflow store of a study: its address, its experiment, one writer at a time, and a server for the browser."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from urllib.request import urlopen

from ..errors import UserError
from ..paths import StudyFolder
from ..study import Study
from ..text import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

SQLITE = "sqlite:///"
MLFLOW = b"OK"  # what its server answers to `/health`
# Without `workflowType` MLflow would open its view of language-model traces, which is empty.
RUNS = "/#/experiments/{}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=policygrain"
# The MLflow UI shows charts of runs for this kind of experiment, and traces of language models for the other one.
KIND = ("mlflow.experimentKind", "custom_model_development")
# The view that this address opens, as MLflow's button "Share" saves it: runs grouped by arm, accuracy first.
SHARED_VIEW = "mlflow.sharedViewState.policygrain"


def tracking_uri(folder: StudyFolder, study: Study) -> str:
    """The URI of the study file, else MLFLOW_TRACKING_URI, else a SQLite file next to the results of the study."""
    store = folder.path.parent.resolve() / "mlflow.db"
    return study.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{store}"


def connect(folder: StudyFolder, study: Study) -> tuple[MlflowClient, str]:
    """A client and the id of the study's experiment, which is created if there is none."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    uri = tracking_uri(folder, study)
    with _store_lock(uri):
        client = mlflow.MlflowClient(uri)
        return client, _experiment(client, folder, study)


@contextlib.contextmanager
def only_writer(folder: StudyFolder, wait: bool) -> Iterator[bool]:
    """Context of the one process that writes a study to MLflow; its value is False if, without ``wait``, another is."""
    with folder.tracking_lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def serve(folder: StudyFolder, study: Study, port: int) -> None:
    """Print the address of the study's runs; a local store is then served until Ctrl-C, by MLflow in this process.

    UserError if there are no results, or if the tracking server does not answer.
    """
    uri = tracking_uri(folder, study)
    if not folder.path.is_dir():
        raise UserError(
            f"{folder.path}: there are no results yet. Run `snakemake all`, and see the runs while they train."
        )
    try:
        _, experiment = connect(folder, study)
    except Exception as error:
        raise UserError(f"tracking.uri: MLflow at {redacted(uri)} does not answer ({reason(error, uri)}).") from None
    local = not uri.startswith(("http://", "https://"))
    address = f"http://127.0.0.1:{port}" if local else redacted(uri).rstrip("/")
    if local and (answer := _answer(port)) is not None:
        if answer != MLFLOW:
            raise UserError(f"--port: {port} is used by another program. Choose another, such as --port {port + 1}.")
        print(f"MLflow is running already: {address}{RUNS.format(experiment)}")
        return
    print(f"Runs, also while they are trained: {address}{RUNS.format(experiment)}", flush=True)
    if local:
        os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        server = f"-m mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri".split()
        os.execv(sys.executable, [sys.executable, *server, uri])


def _answer(port: int) -> bytes | None:
    """What a server on this machine answers to `/health`; None if there is none, empty if it is not an HTTP server."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)):
            return None
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bytes(answer.read(100))
    except (OSError, HTTPException):
        return b""


def reason(error: Exception, uri: str) -> str:
    """The first line of an error's message, without the secrets in ``uri``."""
    text = redacted(str(error).strip().split("\n")[0].replace(uri, redacted(uri)))
    match = re.search(r"://[^/:]*:(.*)@", uri)
    for secret in filter(None, {match[1], unquote(match[1])} if match else ()):
        text = text.replace(secret, "***")
    return text


@contextlib.contextmanager
def _store_lock(uri: str) -> Iterator[None]:
    """One process at a time creates a SQLite store, in a temporary file that is renamed when its tables are complete.

    MLflow itself could not use a store again whose creation was interrupted.
    """
    if not uri.startswith(SQLITE):
        yield
        return
    store = Path(uri.removeprefix(SQLITE).partition("?")[0])
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.with_name(f".{store.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not store.exists():
            import mlflow

            temporary = store.with_name(f".{store.name}.creating")
            temporary.unlink(missing_ok=True)
            mlflow.MlflowClient(f"{SQLITE}{temporary}").search_experiments(max_results=1)
            temporary.rename(store)
        yield


def _experiment(client: MlflowClient, folder: StudyFolder, study: Study) -> str:
    name, tags = study.name, dict([KIND])
    tags[SHARED_VIEW] = json.dumps(json.loads(resources.files(__package__).joinpath("mlflow_view.json").read_text()))
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        local = client.tracking_uri.startswith("sqlite")
        location = (folder.path.parent / "mlflow-artifacts" / name).resolve().as_uri() if local else None
        note = (
            f"{study.title or name}. One run per seed, with its arm as a tag. The records in the study's folder are "
            "the original; this is a copy."
        )
        try:
            noted = {**tags, "mlflow.note.content": note}
            return str(client.create_experiment(name, artifact_location=location, tags=noted))
        except Exception:
            # Created in the meantime by another process, or by a request whose answer was lost.
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    for key, value in tags.items():
        if experiment.tags.get(key) != value:
            client.set_experiment_tag(experiment.experiment_id, key, value)
    return str(experiment.experiment_id)
