"""`policygrain ui`: three lines, a page that opens with learning curves, and no process that is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from policygrain.results.reader import StudyResults
from policygrain.study import load_study
from policygrain.study.runs import run_matrix
from policygrain.track.mirror import mirror
from policygrain.track.points import HEADLINE
from policygrain.track.ui import TAG, share

from ..conftest import ROOT
from ..support.leftovers import swept, with_in_environment
from ..support.made_up import make_up

SMOKE = ROOT / "studies" / "smoke.yaml"
# A server with a worker that would outlive it, in place of MLflow's; SILENT: it does not answer.
SERVER = """
import http.server, os, subprocess, sys, time

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if "SILENT" in os.environ:
    time.sleep(600)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""
SERVE = """
import sys
from pathlib import Path
from policygrain.results.layout import StudyFolder
from policygrain.study import load_study
from policygrain.track import ui
ui.connect, ui.share = lambda *_: (None, "0"), lambda *_: "/"
ui.serve(StudyFolder(Path(sys.argv[2])), load_study(sys.argv[3]), int(sys.argv[1]))
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "silent"),
    [(signal.SIGTERM, {}), (signal.SIGHUP, {}), (signal.SIGINT, {}), (signal.SIGINT, {"SILENT": "1"})],
    ids=["SIGTERM", "SIGHUP", "SIGINT", "SIGINT, while it starts"],
)
def test_a_signal_ends_the_server_and_its_workers(
    tmp_path: Path, port: int, number: signal.Signals, silent: dict[str, str]
) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__main__.py").write_text(SERVER)
    with swept(tmp_path / "swept") as mark:
        environment = {**os.environ, **mark, **silent, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", SERVE, str(port), str(tmp_path), str(SMOKE)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as serving:  # type: ignore[call-overload]
            if not silent:
                assert serving.stdout.readline().startswith("Runs, also while they are trained:")
            _wait_until(lambda: len(with_in_environment(*mark.values())) == 3)
            serving.send_signal(number)
            assert serving.wait(60) == 0 and serving.stderr.read() == ""
        _wait_until(lambda: with_in_environment(*mark.values()) == [])  # zombies have gone when they are collected


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    assert holds()


def test_the_view_shows_all_runs_and_learning_curves_first(tmp_path: Path) -> None:
    import mlflow

    study = load_study(SMOKE)
    results = StudyResults(make_up(study, tmp_path / "smoke", {}))
    experiment = mirror(results).experiment
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    for role in ("seed", "method"):
        query = parse_qs(urlsplit(share(client, experiment, role).removeprefix("/#")).query)
        tag = client.get_experiment(experiment).tags[TAG + query["viewStateShareKey"][0]]
        assert len(tag) < 5000, "as long as a tag can be"
        state = json.loads(tag)
        assert state["runsHiddenMode"] == "SHOW_ALL" and state["compareRunSections"][0]["name"] == "Learning curves"
        assert state["compareRunCharts"][0]["metricKey"] == "validation_accuracy"
        assert {chart["metricKey"] for chart in state["compareRunCharts"]} == set(HEADLINE)
        found = client.search_runs([experiment], state["searchFilter"])
        matrix = run_matrix(study)
        assert len(found) == {"seed": len(matrix.runs), "method": len(matrix.arms)}[role]
    # MLflow draws bars for metrics whose only step is 0.
    scores = {m.key: m.step for run in client.search_runs([experiment]) for m in _metrics(client, run.info.run_id)}
    assert set(scores.values()) == {0} and "test/average" in scores


def _metrics(client: object, run: str) -> list[object]:
    names = [name for name in client.get_run(run).data.metrics if name.startswith("test/")]  # type: ignore[attr-defined]
    return [point for name in names for point in client.get_metric_history(run, name)]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_page_of_the_real_server(tmp_path: Path, port: int) -> None:
    study = load_study(SMOKE)
    folder = make_up(study, tmp_path / "smoke", {})
    mirror(StudyResults(folder))
    with swept(tmp_path / "swept") as mark:
        command = [sys.executable, "-m", "policygrain.cli", "ui", "--config", str(SMOKE)]
        command += ["--results", str(folder), "--port", str(port)]
        environment = {**os.environ, **mark, "MLFLOW_TRACKING_URI": ""}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as serving:
            assert serving.stdout is not None
            lines = [serving.stdout.readline().decode() for _ in range(3)]
            assert lines[2] == "Ctrl-C ends the server.\n", lines
            address = re.findall(r"http\S+", lines[0])[0]
            browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            browser += ["--window-size=1600,1400", "--virtual-time-budget=60000", f"--user-data-dir={tmp_path}/browser"]
            done = subprocess.run([*browser, "--dump-dom", address], capture_output=True, timeout=240, check=True)
            serving.terminate()
            rest, _ = serving.communicate(timeout=60)
            assert serving.returncode == 0 and rest == b""
        assert with_in_environment(*mark.values()) == []
    page = re.sub(r"<[^>]*>", "\n", done.stdout.decode())
    assert re.search(rf"{len(run_matrix(study).runs)}\s+matching runs", page) and page.count("Group:") >= 6
    places = [page.index(name) for name in ("Learning curves", "validation_accuracy", "sampled_accuracy")]
    assert places == sorted(places) and ("test/" not in page or page.index("test/") > places[-1])
