"""What the tables of the documentation share: committed JSON files, Markdown tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def read(name: str) -> Any:
    """A committed JSON file of benchmarks/."""
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(found: dict[str, float]) -> list[str]:
    """Median and range of a measurement, two digits after the point."""
    return [f"{found['median']:.2f}", f"{found['min']:.2f} to {found['max']:.2f}"]
