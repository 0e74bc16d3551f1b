"""Addresses of a study's charts in the MLflow UI, and a server for a local store."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError
from ..results.layout import StudyFolder
from ..study import Study
from ..text import redacted
from .store import connect, reason, tracking_uri
from .view import share

START_SECONDS, END_SECONDS = 120.0, 10.0


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
