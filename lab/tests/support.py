"""Rollouts of another trainer, as rows of a file."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policygrain_lab.rollouts.files import Rollouts, read_rollouts
from tests.support.files import write_lines

Row = dict[str, Any]


def row(*log_ratio: float, **more: Any) -> Row:
    """A response of tokens with these log-ratios."""
    old = [-1.0 - 0.1 * i for i in range(len(log_ratio))]
    return {"old_log_probs": old, "log_probs": [o + x for o, x in zip(old, log_ratio, strict=True)], **more}


def read(rows: Sequence[Row]) -> Rollouts:
    """The rollouts in a file with these rows."""
    with tempfile.TemporaryDirectory() as folder:
        return read_rollouts(write_lines(Path(folder) / "a.jsonl", rows))
