"""The parts that benchmarks share: command line, place and time of a measurement, and its file."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from policygrain.files import atomic_text
from policygrain.provenance import commit, hardware, versions


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option `--out`; the help begins with the first line of ``description``."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    return parser


def provenance() -> dict[str, Any]:
    """Date, hardware, versions of packages, and commit of this repository."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "hardware": hardware(), "versions": versions(), "commit": commit()}


def save(report: dict[str, Any], out: Path | None) -> None:
    """Write ``report`` to ``out``, if there is one."""
    if out:
        atomic_text(out, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
