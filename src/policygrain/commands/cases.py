"""Compare estimators on small tabular policies whose exact gradient is known.

Every ratio, with and without a clip, in cases where theory predicts the sign of the comparison: one to two minutes.
`--map`: on random policies, by age of rollouts, length, dependence between tokens and learning rate: three minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--map", action="store_true", help="the map of regimes on random policies instead of the cases")
    parser.add_argument(
        "--seeds",
        type=int,
        default=200,
        metavar="N",
        help="seeds of the learning curves, or random policies in each regime (default: 200)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write cases.json, or cases_map.json, and its figure (pdf, svg, png)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run all cases or the map, print them, and write them with their figure."""
    import torch

    from ..cases import phase
    from ..cases import run as cases
    from ..errors import UserError
    from ..results.cases import CasesRecord, MapRecord

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
