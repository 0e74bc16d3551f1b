"""Commands on results: a claim on logs of runs, and MLflow in the browser."""

from __future__ import annotations

import json
import math
from argparse import Namespace

from .command import CONFIG, JSON, RESULTS, command, flag, one_of, option, path
from .stages import recorded

SIDE = "logs of at least two runs: paths, globs, or FILE::NAME for runs in one file"


@command(
    option("--a", SIDE, nargs="+", required=True, metavar="RUNS"),
    option("--b", SIDE, nargs="+", required=True, metavar="RUNS"),
    option("--metric", "name of the metric in the logs", required=True, metavar="NAME"),
    option("--margin", "the difference that matters, chosen before the runs", type=float, metavar="X"),
    option("--claimed", "that a is above b (the default), or below", choices=("above", "below"), default="above"),
    one_of(
        option("--last", "endpoint: the mean of the last K values (default: 1)", type=int, default=1, metavar="K"),
        flag("--auc", "endpoint: the mean of the whole curve, the area under it over its width"),
    ),
    option("--until", "leave out values of later steps", type=float, metavar="STEP"),
    option("--step", "the column of steps, where it has an unusual name", metavar="NAME"),
    flag("--unpaired", "do not pair runs by their seeds"),
    flag("--sequential", "the verdict is valid after every added seed; needs pairs"),
    path("--figure", "draw the curves and the difference (.png, .pdf or .svg)", metavar="FILE"),
    JSON,
)
def claim(arguments: Namespace) -> None:
    """Decide whether one side of runs, of any trainer, is better than another.

    Reads logs of TRL, verl and prime-rl, CSV, JSON Lines, MLflow and exports of Weights & Biases. Prints the difference
    with its interval, the verdict, and about how many more seeds would decide (docs/evaluate.md).
    """
    from ..analysis.run_claims import Endpoint, decide_runs
    from ..analysis.run_logs import read_runs
    from ..errors import UserError
    from ..figures import SUFFIXES
    from ..files import check_out

    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: expected at least 1.")
    if arguments.figure is not None and arguments.figure.suffix not in SUFFIXES:
        raise UserError(f"--figure {arguments.figure}: a figure is one of {', '.join(SUFFIXES)}.")
    if arguments.margin is not None and not 0 < arguments.margin < math.inf:
        raise UserError(f"--margin {arguments.margin:g}: expected a number above 0.")
    if arguments.until is not None and not math.isfinite(arguments.until):
        raise UserError(f"--until {arguments.until:g}: expected a step.")
    check_out(arguments.figure)
    a, b = (read_runs(side, arguments.metric, arguments.step) for side in (arguments.a, arguments.b))
    decided = decide_runs(
        a,
        b,
        arguments.metric,
        margin=arguments.margin,
        claimed=arguments.claimed,
        endpoint=Endpoint(arguments.last, arguments.auc, arguments.until),
        pair=not arguments.unpaired,
        sequential=arguments.sequential,
    )
    print(json.dumps(decided.data(), indent=1, ensure_ascii=False) if arguments.json else decided.text())
    if arguments.figure is not None:
        from ..figures import run_claims

        run_claims.draw(decided, a, b, arguments.figure)


@command(CONFIG, RESULTS, option("--port", "port of the server on this machine", type=int, default=5000))
def ui(arguments: Namespace) -> None:
    """Print where a study's runs are in MLflow, and serve it in the browser.

    With a tracking server (`tracking.uri`, MLFLOW_TRACKING_URI) the address is only printed; otherwise the local store
    is served until Ctrl-C.
    """
    from ..report.mlflow_store import serve

    results = recorded(arguments)
    serve(results.folder, results.study, arguments.port)
