"""Addresses of a study's charts in the MLflow UI, and a server for a local store."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from urllib.parse import quote

from ..errors import UserError
from ..results.layout import StudyFolder
from ..study import Study
from ..text import redacted
from .store import connect, reason, tracking_uri

START_SECONDS = 120.0


def charts(server: str, experiment: str, role: str) -> str:
    """The address of the charts of a study's runs; ``role``: `seed`, or `method` for the means over seeds.

    Without `workflowType` MLflow would open its view of language-model traces, which is empty.
    """
    chosen = "&searchFilter=" + quote(f'tags."grain.role" = "{role}"')
    return f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART{chosen}"


def serve(folder: StudyFolder, study: Study, port: int) -> None:
    """Print the addresses of the study's charts. A local store is served until Ctrl-C.

    UserError if nothing has been logged, or if the server does not start.
    """
    uri = tracking_uri(folder, study)
    if not folder.path.is_dir():
        raise UserError(
            f"{folder.path}: there are no results yet. Run `snakemake all`, and see the runs while they train."
        )
    try:
        _, experiment = connect(folder, study)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"tracking.uri: MLflow at {redacted(uri)} does not answer ({reason(error, uri)}).") from None
    if uri.startswith(("http://", "https://")):
        _print(redacted(uri).rstrip("/"), experiment)
        return
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        raise UserError(f"port {port}: another program uses it, maybe another MLflow. Choose another by --port.")
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen([*command, "--backend-store-uri", uri], env=environment)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(server, address)
        _print(address, experiment)
        if code := server.wait():
            raise UserError(f"mlflow ui ended with exit code {code}; its messages are above.")
    except KeyboardInterrupt:
        pass
    finally:
        server.terminate()
        server.wait()


def _print(server: str, experiment: str) -> None:
    print(f"Runs, also while they are trained:  {charts(server, experiment, 'seed')}")
    print(f"Methods, when all is done:          {charts(server, experiment, 'method')}", flush=True)


def _wait(server: subprocess.Popen[bytes], address: str) -> None:
    end = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(0.3)
    raise UserError(f"mlflow ui did not start at {address}. Is another program using the port? Give another by --port.")
