"""`policygrain ui`: the address of a study's runs in MLflow, and its server."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from http.client import HTTPException
from urllib.request import urlopen

from ..errors import UserError
from ..paths import StudyFolder
from ..study import Study
from ..text import redacted
from ..tracking import connect, named, tracking_uri

# Without `workflowType` MLflow would open its view of language-model traces, which is empty.
RUNS = "/#/experiments/{}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=policygrain"


def serve(folder: StudyFolder, study: Study, port: int) -> None:
    """Print the address of the study's runs; a local store is then served until Ctrl-C, by MLflow in this process."""
    uri = tracking_uri(folder, study)
    with named(uri):
        _, experiment = connect(folder, study)
    remote = uri.startswith(("http://", "https://"))
    address = redacted(uri).rstrip("/") if remote else f"http://127.0.0.1:{port}"
    with socket.socket() as probe:
        taken, health = not remote and probe.connect_ex(("127.0.0.1", port)) == 0, b""
    if taken:
        with suppress(OSError, HTTPException), urlopen(f"{address}/health", timeout=5) as answer:
            health = answer.read(100)  # MLflow's says OK
    if taken and health != b"OK":
        raise UserError(f"--port: {port} is used by another program. Choose another, such as --port {port + 1}.")
    running = "MLflow is running already" if taken else "Runs in MLflow"
    print(f"{running}: {address}{RUNS.format(experiment)}", flush=True)
    if not (remote or taken):
        server = f"-m mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri".split()
        os.execv(sys.executable, [sys.executable, *server, uri])
