"""Compare estimators on small tabular policies whose exact gradient is known.

Every ratio, with and without a clip, in cases where theory predicts the sign of the comparison: one to two minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--seeds", type=int, default=200, metavar="N", help="seeds of the learning curves (default: 200)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write cases.json, cases.pdf, cases.svg and cases.png"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run all cases, print them, and write them with their figure."""
    import torch

    from ..cases.run import run_cases, text
    from ..errors import UserError

    if arguments.seeds < 2:
        raise UserError(f"--seeds {arguments.seeds}: an interval over seeds needs at least 2.")
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    record = run_cases(arguments.seeds)
    print(record.model_dump_json(indent=1) if arguments.json else text(record))
    if arguments.out:
        from ..figures import cases
        from ..figures.style import save
        from ..results.schema import write_record

        arguments.out.mkdir(parents=True, exist_ok=True)
        write_record(arguments.out / "cases.json", record)
        save(cases.draw(record), arguments.out / "cases")
