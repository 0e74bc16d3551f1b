"""Commands that answer a question without a study: exact cases, and the clip bands of another trainer's rollouts."""

from __future__ import annotations

import json
from argparse import Namespace

from .declare import command, flag, option, path


@command(
    flag("--map", "the map of regimes on random policies instead of the cases"),
    option(
        "--seeds",
        "seeds of the learning curves, or random policies in each regime (default: 200)",
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

    from ..cases import phase
    from ..cases import run as cases
    from ..errors import UserError
    from ..results.case_records import CasesRecord, MapRecord

    if arguments.seeds < 2:
        raise UserError(f"--seeds {arguments.seeds}: an interval over seeds needs at least 2.")
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    record: CasesRecord | MapRecord
    if arguments.map:
        record = phase.run_map(arguments.seeds)
        printed = phase.text(record)
    else:
        record = cases.run_cases(arguments.seeds)
        printed = cases.text(record)
    print(record.model_dump_json(indent=1) if arguments.json else printed)
    if arguments.out:
        from ..figures import cases as figure
        from ..figures import maps
        from ..figures.style import save
        from ..results.schema import write_record

        arguments.out.mkdir(parents=True, exist_ok=True)
        name = "cases_map" if arguments.map else "cases"
        write_record(arguments.out / f"{name}.json", record)
        drawn = maps.exact(record) if isinstance(record, MapRecord) else figure.draw(record)
        save(drawn, arguments.out / name)


@command(
    path(
        "--rollouts",
        "JSON Lines or Parquet, a row per response: log_probs, old_log_probs, and reward and group, or advantage",
        required=True,
        metavar="FILE",
    ),
    option("--share", "share of tokens that a band should clip (default: 0.01)", type=float, default=0.01),
    path("--figure", "draw the distributions", metavar="PNG"),
    path("--out", "JSON file of what was measured", metavar="FILE"),
)
def calibrate(arguments: Namespace) -> None:
    """Measure which clip bands clip what, on the rollouts of a run of your own.

    How the ratios of each grain spread, what published bands clip, and the band that clips a wanted share of tokens.
    """
    from ..integrations import bands
    from ..integrations.rollout_files import read_rollouts

    rollouts = read_rollouts(arguments.rollouts)
    grains = bands.measure(rollouts, arguments.share)
    print(bands.table(grains, rollouts, arguments.share))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(bands.data(grains, rollouts, arguments.share), indent=1) + "\n")
    if arguments.figure is not None:
        bands.draw(rollouts, arguments.figure)
