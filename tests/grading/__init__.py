"""Cases as data: what a file has in each line."""

import json
from pathlib import Path
from typing import Any


def read(name: str | Path) -> list[dict[str, Any]]:
    """The lines of a file, by default of this folder."""
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text().split("\n") if line]
