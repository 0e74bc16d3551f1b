"""Rollouts of another trainer, as rows of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def row(*log_ratio: float, **more: Any) -> Row:
    """A response of tokens with these log-ratios."""
    old = [-1.0 - 0.1 * i for i in range(len(log_ratio))]
    return {"old_log_probs": old, "log_probs": [o + x for o, x in zip(old, log_ratio, strict=True)], **more}


def write(path: Path, rows: list[Row]) -> Path:
    """JSON Lines, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    return path
