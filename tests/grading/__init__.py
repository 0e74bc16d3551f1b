"""Cases as data: what a file has in each line."""

import json
from pathlib import Path
from typing import Any

from policygrain.grading import Item, Options


def read(name: str | Path) -> list[dict[str, Any]]:
    """The lines of a file, by default of this folder."""
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text().split("\n") if line]


def items(gold: str, *answers: str, options: Options | None = None) -> list[Item]:
    """Answers, or responses, to be graded against the same gold answer."""
    return [Item(gold, answer, options or Options()) for answer in answers]
