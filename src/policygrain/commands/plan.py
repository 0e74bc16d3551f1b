"""Estimate what a study costs, before anything is submitted.

Jobs, device-hours, tokens, memory and disk come from a cost model that states its assumptions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("studies", type=Path, nargs="+", metavar="STUDY", help="study file; its data may be missing")
    parser.add_argument(
        "--device", metavar="NAME", help="device of the constants (default: cpu for tiny models, else h100)"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="number of available devices (default: those of one run)")
    parser.add_argument(
        "--per-run", type=int, metavar="N", help="devices per run (default: the fewest that it fits on)"
    )
    parser.add_argument(
        "--constants", type=Path, metavar="FILE", help="YAML file that overrides the package's constants"
    )
    form = parser.add_mutually_exclusive_group()
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    form.add_argument("--markdown", action="store_true", help="one row per study")
    form.add_argument(
        "--power",
        type=Path,
        metavar="RESULTS",
        help="seeds and device-hours of a verdict, by the spread in these records",
    )
    form.add_argument("--against", type=Path, metavar="RESULTS", help="compare with the records of the finished study")
    form.add_argument("--calibrate", type=Path, metavar="RESULTS", help="fit constants to the records of such a study")
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --calibrate: YAML file for the constants")


def run(arguments: argparse.Namespace) -> None:
    """Print the estimates, compare one with records, or fit constants to records."""
    from ..cost import measured, table
    from ..cost.constants import read_constants
    from ..cost.estimate import estimate
    from ..errors import UserError
    from ..results.reader import StudyResults
    from ..study import load_study

    constants = read_constants(arguments.constants)
    studies = [load_study(path) for path in arguments.studies]
    devices = [arguments.device or ("cpu" if s.model.start == "tiny" else "h100") for s in studies]
    if arguments.against or arguments.calibrate:
        if len(studies) > 1:
            raise UserError("plan: --against and --calibrate read the records of one study; name one study.")
        if arguments.against:
            results = StudyResults(arguments.against, studies[0])
            rows = measured.against(results, constants, constants.device(devices[0]))
            print(json.dumps(rows, indent=1) if arguments.json else table.comparison(rows).rstrip())
            return
        if arguments.out is None:
            raise UserError("plan: --calibrate needs --out FILE for the constants.")
        results = StudyResults(arguments.calibrate, studies[0])
        _write(measured.calibrate(results, constants, devices[0]), arguments.out)
        return
    if arguments.power and (len(studies) > 1 or arguments.json):
        raise UserError("plan: --power is of one study, and prints a table; name one study, without --json.")
    estimates = [
        estimate(study, constants, device, arguments.gpus, arguments.per_run)
        for study, device in zip(studies, devices, strict=True)
    ]
    if arguments.power:
        from ..analysis.power import paired_spreads

        results = StudyResults(arguments.power)
        print(table.power(paired_spreads(results), estimates[0], results.study.name), end="")
    elif arguments.json:
        print(json.dumps(estimates, indent=1, ensure_ascii=False))
    elif arguments.markdown:
        print(table.markdown(estimates), end="")
    else:
        print("\n".join(map(table.detail, estimates)), end="")


def _write(constants: object, out: Path) -> None:
    import yaml

    from ..files import atomic_text

    atomic_text(out, yaml.safe_dump(constants, sort_keys=False, allow_unicode=True))
    print(out)
