"""What a study will cost, and what it did cost."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..errors import UserError
from . import Command


def add(command: Command) -> None:
    """Add the command to the parser."""
    added = command("plan", _plan, "say what a study costs before anything is submitted")
    added.add_argument("studies", type=Path, nargs="+", metavar="STUDY", help="study file; its data need not be there")
    added.add_argument("--device", metavar="NAME", help="as in the constants (default: cpu for tiny models, else h100)")
    added.add_argument("--gpus", type=int, metavar="N", help="devices that there are (default: one run's)")
    added.add_argument(
        "--per-run", type=int, metavar="N", help="devices of one run (default: the fewest that it fits on)"
    )
    added.add_argument("--constants", type=Path, metavar="FILE", help="YAML that overrides the package's constants")
    form = added.add_mutually_exclusive_group()
    added.add_argument("--json", action="store_true", help="everything, as JSON")
    form.add_argument("--markdown", action="store_true", help="a row per study")
    form.add_argument("--against", type=Path, metavar="RESULTS", help="compare with the records of the finished study")
    form.add_argument("--calibrate", type=Path, metavar="RESULTS", help="learn constants from such records")
    added.add_argument("--out", type=Path, metavar="FILE", help="with --calibrate: where they go")


def _plan(arguments: argparse.Namespace) -> None:
    """Jobs, device-hours, tokens, memory and disk of a study, from a cost model that says what it assumes."""
    from ..cost import measured, table
    from ..cost.constants import read_constants
    from ..cost.estimate import estimate
    from ..study import load_study

    constants = read_constants(arguments.constants)
    studies = [load_study(path, files=False) for path in arguments.studies]
    devices = [arguments.device or ("cpu" if s.model.start == "tiny" else "h100") for s in studies]
    if arguments.against or arguments.calibrate:
        if len(studies) > 1:
            raise UserError("plan: records are of one study; name one.")
        if arguments.against:
            rows = measured.against(studies[0], arguments.against, constants, constants.device(devices[0]))
            print(json.dumps(rows, indent=1) if arguments.json else table.comparison(rows).rstrip())
            return
        if arguments.out is None:
            raise UserError("plan: --calibrate needs --out FILE for the constants.")
        _write(measured.calibrate(studies[0], arguments.calibrate, constants, devices[0]), arguments.out)
        return
    bills = [
        estimate(study, constants, device, arguments.gpus, arguments.per_run)
        for study, device in zip(studies, devices, strict=True)
    ]
    if arguments.json:
        print(json.dumps(bills, indent=1, ensure_ascii=False))
    elif arguments.markdown:
        print(table.markdown(bills), end="")
    else:
        print("\n".join(map(table.detail, bills)), end="")


def _write(constants: object, out: Path) -> None:
    import yaml

    from ..files import atomic_text

    atomic_text(out, yaml.safe_dump(constants, sort_keys=False, allow_unicode=True))
    print(out)
