"""Commands on results: a claim on logs of runs, and MLflow in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import UserError
from ..files import check_out
from ..text import latex_table, markdown_table
from .app import CONFIG, Config, Json, Results, app, option
from .stages import recorded

GROUP = "Results, and logs of any trainer"
Side = Annotated[
    list[str], option("logs of at least two runs: paths, globs, or PLACE::NAME for runs in one place", metavar="RUNS")
]


@app.command(rich_help_panel=GROUP)
def claim(
    a: Side,
    b: Side,
    metric: Annotated[str, option("name of the metric in the logs", metavar="NAME")],
    margin: Annotated[
        float | None, typer.Option(min=0, help="the difference that matters, chosen before the runs", metavar="X")
    ] = None,
    claimed: Annotated[Literal["above", "below"], option("that a is above b, or below")] = "above",
    last: Annotated[int, typer.Option(min=1, help="endpoint: the mean of the last K values", metavar="K")] = 1,
    auc: Annotated[bool, option("endpoint: the mean of the whole curve instead", "--auc")] = False,
    until: Annotated[float | None, option("leave out values of later steps", metavar="STEP")] = None,
    step: Annotated[str | None, option("the column of steps, where it has an unusual name", metavar="NAME")] = None,
    unpaired: Annotated[bool, option("do not pair runs by their seeds", "--unpaired")] = False,
    figure: Annotated[Path | None, option("draw the curves and the difference", metavar="FILE")] = None,
    table: Annotated[Literal["markdown", "latex"] | None, option("print a table of one row instead")] = None,
    fail_unless: Annotated[
        Literal["holds", "smaller"] | None, option("exit with 1 where the verdict does not say so")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide whether one side of runs, of any trainer, is better than another.

    Reads logs of TRL, verl and prime-rl, CSV, JSON Lines, MLflow, TensorBoard and exports of Weights & Biases. Prints
    the difference with its interval, the verdict, and about how many more seeds would decide (docs/evaluate.md).
    """
    from ..analysis.run_claims import Endpoint, decide_runs
    from ..analysis.run_logs import read_runs
    from ..figures import SUFFIXES

    if figure is not None and figure.suffix not in SUFFIXES:
        raise UserError(f"--figure {figure}: a figure is one of {', '.join(SUFFIXES)}.")
    check_out(figure)
    of_a, of_b = read_runs(a, metric, step), read_runs(b, metric, step)
    endpoint, pair = Endpoint(last, auc, until), not unpaired
    decided = decide_runs(of_a, of_b, metric, margin=margin, claimed=claimed, endpoint=endpoint, pair=pair)
    if as_json:
        print(json.dumps(decided.data(), indent=1, ensure_ascii=False))
    elif table is not None:
        print((markdown_table if table == "markdown" else latex_table)(*decided.table()), end="")
    else:
        print(decided.text())
    if figure is not None:
        from ..figures import run_claims

        run_claims.draw(decided, of_a, of_b, figure)
    if fail_unless is not None and fail_unless not in decided.verdict:
        raise typer.Exit(1)


@app.command(rich_help_panel=GROUP)
def ui(
    config: Config = CONFIG,
    results: Results = None,
    port: Annotated[int, option("port of the server on this machine")] = 5000,
) -> None:
    """Print where a study's runs are in MLflow, and serve it in the browser.

    With a tracking server (`tracking.uri`, MLFLOW_TRACKING_URI) the address is only printed; otherwise the local store
    is served until Ctrl-C.
    """
    from ..tracking import serve

    read = recorded(config, results)
    serve(read.folder, read.study, port)
