"""Commands that answer a question without a study: exact cases, and rollouts and runs of another trainer."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from .command import JSON, command, flag, one_of, option, path

ROLLOUTS = path(
    "--rollouts",
    "JSON Lines or Parquet, a row per response: log_probs, old_log_probs, and reward and group, or advantage",
    required=True,
    metavar="FILE",
)


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


@command(
    ROLLOUTS,
    option("--share", "share of tokens that a range should clip (default: 0.01)", type=float, default=0.01),
    path("--out", "JSON file of what was measured", metavar="FILE"),
)
def calibrate(arguments: Namespace) -> None:
    """Measure what clip ranges and corrections do to the rollouts of your own run.

    For the ratio of each grain: its spread, the share that published ranges clip, and the range that clips a wanted
    share of tokens. With log-probabilities of the engine: what published corrections drop, and whether the engine's
    difference from the trainer is noise or bias.
    """
    from ..files import atomic_json, check_out
    from ..integrations import calibrate, mismatch
    from ..integrations.anatomy import checks, unrelated
    from ..integrations.rollouts import read_rollouts

    check_out(arguments.out)
    rollouts = read_rollouts(arguments.rollouts)
    engine, notes = mismatch.measure(rollouts), checks(rollouts)
    content, pasted = dict[str, Any](), list[str]()
    if engine is not None and (reason := calibrate.without_effect(rollouts)) is not None:
        print(f"Clip ranges are not measured: {reason}")
    else:
        grains = calibrate.measure(rollouts, arguments.share)
        print(calibrate.table(grains, rollouts, arguments.share))
        content = calibrate.data(grains, rollouts, arguments.share)
        pasted = [] if unrelated(rollouts) else ["", *calibrate.to_paste(grains)]
    print("\n".join(["", mismatch.table(engine), *(f"note: {note}" for note in notes), *pasted]))
    if arguments.out is not None:
        content |= {"engine": None if engine is None else engine.data(), "notes": notes}
        atomic_json(arguments.out, content)


SIDE = "logs of at least two runs: paths, globs, or FILE::NAME for runs in one file"


@command(
    option("--a", SIDE, nargs="+", required=True, metavar="RUNS"),
    option("--b", SIDE, nargs="+", required=True, metavar="RUNS"),
    option("--metric", "name of the metric in the logs", required=True, metavar="NAME"),
    option("--margin", "the difference that matters, chosen before the runs", type=float, metavar="X"),
    option("--claimed", "that a is above b (the default), or below", choices=("above", "below"), default="above"),
    one_of(
        option("--last", "endpoint: the mean of the last K values (default: 1)", type=int, default=1, metavar="K"),
        flag("--area", "endpoint: the mean of the whole curve"),
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
    with its interval, the verdict, and about how many more seeds would decide (docs/run-claims.md).
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
        endpoint=Endpoint(arguments.last, arguments.area, arguments.until),
        pair=not arguments.unpaired,
        sequential=arguments.sequential,
    )
    print(json.dumps(decided.data(), indent=1, ensure_ascii=False) if arguments.json else decided.text())
    if arguments.figure is not None:
        from ..figures import run_claims

        run_claims.draw(decided, a, b, arguments.figure)


@command(
    ROLLOUTS,
    path("--out", "the page (default: anatomy.html, unless --json)", metavar="HTML"),
    flag("--json", "print everything as JSON"),
    option(
        "--advantages",
        "rows: the file's advantages for all; method: each objective's own, from reward and group (default: rows)",
        choices=("rows", "method"),
        default="rows",
    ),
    path("--methods", "YAML file with objectives of your own, as under `methods` in a study file", metavar="FILE"),
    option("--model", "compare gradients, too: the folder or name of the model of log_probs", metavar="MODEL"),
    option("--step", "with --model: the step whose responses are used (default: the first)", type=int, metavar="N"),
    option("--responses", "responses whose gradients are compared (default: 64)", type=int, default=64, metavar="N"),
    option("--directions", "random directions for gradients (default: 64)", type=int, default=64, metavar="N"),
    option("--temperature", "temperature of the log-probabilities (default: 1)", type=float, default=1.0),
    option("--seed", "seed of random directions and random choices of objectives (default: 0)", type=int, default=0),
)
def anatomy(arguments: Namespace) -> None:
    """Measure how objectives weight the tokens of your own batch, and which of them give the same update.

    No model is needed: the weight of each token's gradient follows from log-probabilities, advantages and masks.
    """
    import torch

    from ..errors import UserError
    from ..files import atomic_text, check_out
    from ..integrations import anatomy_page
    from ..integrations.anatomy import measure
    from ..integrations.coefficients import Work
    from ..integrations.options import methods_file
    from ..integrations.rollouts import read_rollouts

    for name in ("responses", "directions"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} {getattr(arguments, name)}: expected at least 1.")
    if not arguments.temperature > 0:
        raise UserError(
            f"--temperature {arguments.temperature:g}: expected a number above 0, the sampling temperature."
        )
    if arguments.step is not None and not arguments.model:
        raise UserError("--step: chooses the responses whose gradients are compared; give --model, too.")
    check_out(arguments.out)
    rollouts = read_rollouts(arguments.rollouts)
    methods = methods_file(arguments.methods) if arguments.methods else {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    work = Work(rollouts, methods, arguments.advantages == "method", arguments.seed)
    measured = measure(work)
    torch.set_num_threads(threads)
    if arguments.model:
        from ..instruments.projection import gradient_cosines

        how = arguments.step, arguments.responses, arguments.directions, arguments.temperature, arguments.seed
        measured = replace(measured, gradient=gradient_cosines(work, arguments.model, *how))
    print(json.dumps(anatomy_page.data(measured), indent=1) if arguments.json else anatomy_page.table(measured))
    if arguments.out or not arguments.json:
        out = arguments.out or Path("anatomy.html")
        atomic_text(out, anatomy_page.page(measured, arguments.rollouts.name))
        if not arguments.json:
            print(f"\n{out}")
