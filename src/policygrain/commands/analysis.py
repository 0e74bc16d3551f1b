"""Commands that answer a question without a study: exact cases, and rollouts and runs of another trainer."""

from __future__ import annotations

import json
import math
from argparse import Namespace

from .command import JSON, command, flag, one_of, option, path


@command(
    flag("--map", "the map of settings on random policies instead of the cases"),
    option(
        "--seeds",
        "seeds of the learning curves, or random policies in each setting (default: 200)",
        type=int,
        default=200,
        metavar="N",
    ),
    flag("--json", "print everything as JSON"),
    path("--out", "write cases.json, or cases_map.json, and its figure (pdf, svg, png)", metavar="FOLDER"),
)
def cases(arguments: Namespace) -> None:
    """Compare estimators on small tabular policies whose exact gradient is known.

    Every ratio, with and without a clip, in cases where theory predicts the sign of the comparison: one to two minutes.
    `--map`: on random policies, by age of rollouts, length, dependence between tokens and learning rate: three minutes.
    """
    import torch

    from ..errors import UserError
    from ..files import check_out
    from ..instruments import exact_decision as decision
    from ..instruments import exact_map as phase
    from ..measurements import CasesRecord, MapRecord

    if arguments.seeds < 2:
        raise UserError(f"--seeds {arguments.seeds}: an interval over seeds needs at least 2.")
    name = "cases_map" if arguments.map else "cases"
    check_out(arguments.out and arguments.out / f"{name}.json")
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    record: CasesRecord | MapRecord
    if arguments.map:
        record = phase.run_map(arguments.seeds)
        printed = phase.text(record)
    else:
        record = decision.run_cases(arguments.seeds)
        printed = decision.text(record)
    print(record.model_dump_json(indent=1) if arguments.json else printed)
    if arguments.out:
        from ..figures import cases as figure
        from ..figures import maps
        from ..figures.style import save
        from ..records import write_record

        arguments.out.mkdir(parents=True, exist_ok=True)
        write_record(arguments.out / f"{name}.json", record)
        drawn = maps.exact(record) if isinstance(record, MapRecord) else figure.draw(record)
        save(drawn, arguments.out / name)


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
