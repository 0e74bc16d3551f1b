"""Addresses of a study's charts in the MLflow UI, and a server for a local store.

By itself MLflow opens with a chart for each metric that has a prefix, such as the single points of `test/`, and with
ten runs. A shared view is a tag of the experiment, named in the address: this one has the learning curves of all runs,
or a curve per method.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ..errors import UserError
from ..results.layout import StudyFolder
from ..study import Study
from ..text import redacted
from .points import HEADLINE
from .store import connect, reason, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

START_SECONDS, END_SECONDS = 120.0, 10.0
TAG = "mlflow.sharedViewState."
FIRST = ("validation_accuracy", *(name for name in HEADLINE if name != "validation_accuracy"))
CURVES, SCORES, OTHERS = "Learning curves", "test", "Model metrics"  # MLflow's names of metrics with and without prefix


def serve(folder: StudyFolder, study: Study, port: int) -> None:
    """Print the addresses of the study's charts. A local store is served until Ctrl-C, or SIGTERM or SIGHUP.

    UserError if nothing has been logged, or if the server does not start.
    """
    uri = tracking_uri(folder, study)
    if not folder.path.is_dir():
        raise UserError(
            f"{folder.path}: there are no results yet. Run `snakemake all`, and see the runs while they train."
        )
    try:
        client, experiment = connect(folder, study)
        runs, methods = (share(client, experiment, role) for role in ("seed", "method"))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"tracking.uri: MLflow at {redacted(uri)} does not answer ({reason(error, uri)}).") from None
    local = not uri.startswith(("http://", "https://"))
    address = f"http://127.0.0.1:{port}" if local else redacted(uri).rstrip("/")
    lines = (
        f"Runs, also while they are trained:  {address}{runs}\nMethods, when all is done:          {address}{methods}"
    )
    if not local:
        print(lines)
        return
    with contextlib.suppress(KeyboardInterrupt), mlflow_server(uri, address, port, folder.server_log) as server:
        print(f"{lines}\nCtrl-C ends the server.", flush=True)
        if code := server.wait():
            raise UserError(f"mlflow ended with exit code {code}; its messages are in {folder.server_log}.")


@contextlib.contextmanager
def mlflow_server(uri: str, address: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Context of an MLflow server, which is ended with its workers at the end. Its messages go to ``log``.

    KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP, also while the server starts.
    """
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        raise UserError(f"port {port}: another program uses it, maybe another MLflow. Choose another by --port.")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    server = None
    try:
        with log.open("wb") as messages:
            server = subprocess.Popen(
                [*command, "--backend-store-uri", uri],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                start_new_session=True,
            )
        _wait(server, address, log)
        yield server
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if server is not None:
            _end(server)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers, and do not wait for long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(END_SECONDS)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(0.3)
    raise UserError(f"mlflow did not start at {address}; its messages are in {log}. Another port may help: --port.")


def share(client: MlflowClient, experiment: str, role: str) -> str:
    """Write the view of a study's runs to MLflow, and return the part of its address after the server's.

    ``role``: `seed` for the runs, grouped by arm, or `method` for the runs with the means over seeds.
    """
    key = f"policygrain-{role}"
    client.set_experiment_tag(experiment, f"{TAG}{key}", json.dumps(view(role), separators=(",", ":")))
    # Without `workflowType` MLflow would open its view of language-model traces, which is empty.
    query = {"workflowType": "machine_learning", "compareRunsMode": "CHART", "viewStateShareKey": key}
    return f"/#/experiments/{experiment}/runs?{urlencode(query)}"


def view(role: str) -> dict[str, Any]:
    """The state of MLflow's page of runs, as far as it differs from its defaults."""
    by_arm = {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "arm"}]}
    return {
        "searchFilter": f'tags."grain.role" = "{role}"',
        "runsHiddenMode": "SHOW_ALL",
        "groupBy": by_arm if role == "seed" else None,
        "isAccordionReordered": True,  # the sections stay in this order
        "compareRunSections": [_section(name) for name in (CURVES, SCORES, *([OTHERS] if role == "seed" else []))],
        "compareRunCharts": [_chart(name) for name in FIRST],
    }


def _section(name: str) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": True, "isReordered": True, "deleted": False, "isGenerated": True}


def _chart(metric: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "uuid": metric,
        "metricKey": metric,
        "metricSectionId": CURVES,
        "deleted": False,
        "isGenerated": True,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "selectedXAxisMetricKey": "",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
    }
