"""The command that shows the runs of a study in MLflow."""

from __future__ import annotations

from argparse import Namespace

from .command import CONFIG, RESULTS, command, option
from .stages import recorded


@command(CONFIG, RESULTS, option("--port", "port of the server on this machine", type=int, default=5000))
def ui(arguments: Namespace) -> None:
    """Print where a study's runs are in MLflow, and serve it in the browser.

    With a tracking server (`tracking.uri`, MLFLOW_TRACKING_URI) the address is only printed; otherwise the local store
    is served until Ctrl-C.
    """
    from ..report.mlflow_store import serve

    results = recorded(arguments)
    serve(results.folder, results.study, arguments.port)
