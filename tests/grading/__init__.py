"""Cases as data, in the files of this folder."""

from pathlib import Path
from typing import Any

from policygrain.grading import Item, Options

from ..support.files import read_lines


def read(name: str) -> list[dict[str, Any]]:
    return read_lines(Path(__file__).with_name(name))


def items(gold: str, *answers: str, options: Options | None = None) -> list[Item]:
    """Answers, or responses, to be graded against the same gold answer."""
    return [Item(gold, answer, options or Options()) for answer in answers]
