"""What a verifier says, and what one is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, Protocol, Self, get_args

Outcome = Literal["correct", "incorrect", "unparsable", "timeout", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

_BRACES = re.compile(r"\\boxed\{|[{}]")
# What may stand between boxes that are one answer together: `\boxed{1}$, $\boxed{2}$ and \boxed{3}`.
_JOINT = re.compile(r"(?:[\s$,;&]|\\[,;!() ]|and|or)*")
_MOST_JOINED = 64


class Verifier(Protocol):
    """Judges responses. Order is kept and every response gets an outcome, whatever it holds."""

    name: str

    def verify(self, golds: Sequence[str], responses: Sequence[str]) -> list[Outcome]:
        """One outcome per (gold answer, response)."""
        ...

    def close(self) -> None:
        """Give processes back, where there are any. A closed verifier can be used again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{…}``, braces balanced; None where there is none."""
    box = _last_box(text)
    return None if box is None else text[box[1] : box[2]]


def joined_boxes(text: str) -> str | None:
    r"""Like ``boxed``, together with the boxes before it that are one list: `\boxed{1} and \boxed{2}` is `1, 2`."""
    box = _last_box(text)
    parts: list[str] = []
    while box is not None and len(parts) < _MOST_JOINED and (not parts or _JOINT.fullmatch(text, box[2] + 1)):
        text, parts = text[: box[0]], [text[box[1] : box[2]], *parts]
        box = _last_box(text)
    return ", ".join(parts) if parts else None


def _last_box(text: str) -> tuple[int, int, int] | None:
    """Where the last complete box starts, where its content starts and where that ends, in one pass."""
    if "\\boxed{" not in text:
        return None
    # A stack of open braces; those of boxes hold where the box starts. What counts is the complete box that starts
    # last, so one inside another wins over it.
    last: tuple[int, int, int] | None = None
    stack: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(text):
        if match.group() == "}":
            opened = stack.pop() if stack else None
            if opened and (last is None or opened[0] > last[0]):
                last = (*opened, match.start())
        else:
            stack.append((match.start(), match.end()) if len(match.group()) > 1 else None)
    return last
