"""Commands that show and compare the results of a study."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from .command import CONFIG, JSON, RESULTS, command, flag, option, path
from .stages import recorded


@command(
    path("paths", "run, evaluation/, records.json, or a study's results", nargs="+", metavar="PATH"),
    option("--against", "compare the others with this one (default: the first)", metavar="NAME"),
    option("--benchmark", "show only this one; may be repeated", action="append", metavar="NAME"),
    flag("--anyway", "compare records of different protocols"),
    flag("--all", "every benchmark with intervals, and the protocol"),
    JSON,
    path("--page", "write the samples of one or two runs as an HTML file", metavar="OUT"),
)
def show(arguments: Namespace) -> None:
    """Show evaluations: one model in detail, several side by side, or samples as a page.

    Accuracies have 95% intervals over training seeds, or over problems where there is one seed; differences are paired.
    """
    from ..analysis import model_comparison as analysis
    from ..analysis.evaluated_models import check_same_protocol, find, select_benchmarks

    groups = select_benchmarks(find(arguments.paths), arguments.benchmark)
    differing = check_same_protocol(groups, arguments.anyway)
    baseline = analysis.baseline(groups, arguments.against)
    if arguments.page:
        from ..report.samples import write_page

        print(write_page(groups, arguments.page))
    elif arguments.json:
        print(json.dumps(analysis.data(groups, baseline, differing), indent=1, ensure_ascii=False))
    else:
        from ..report.show import comparison, detail, overview

        side_by_side = comparison if arguments.all else overview
        print(detail(baseline) if len(groups) == 1 else side_by_side(groups, baseline, differing), end="")


@command(CONFIG, RESULTS, option("--port", "port of the server on this machine", type=int, default=5000))
def ui(arguments: Namespace) -> None:
    """Print where a study's runs are in MLflow, and serve it in the browser.

    With a tracking server (`tracking.uri`, MLFLOW_TRACKING_URI) the address is only printed; otherwise the local store
    is served until Ctrl-C.
    """
    from ..report.mlflow_store import serve

    results = recorded(arguments)
    serve(results.folder, results.study, arguments.port)
