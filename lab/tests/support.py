"""Rollouts of another trainer, as rows of a file."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def row(*log_ratio: float, **more: Any) -> Row:
    """A response of tokens with these log-ratios."""
    old = [-1.0 - 0.1 * i for i in range(len(log_ratio))]
    return {"old_log_probs": old, "log_probs": [o + x for o, x in zip(old, log_ratio, strict=True)], **more}
