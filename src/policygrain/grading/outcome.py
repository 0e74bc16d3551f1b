"""What a grader says, and what one is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, Protocol, Self, get_args

from .numbers import PLAIN, Options

Outcome = Literal["correct", "incorrect", "unparsable", "timeout", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

_BRACES = re.compile(r"\\boxed\{|[{}]")
# What may stand between boxes that are one answer together: `\boxed{1}$, $\boxed{2}$ and \boxed{3}`.
_JOINT = re.compile(r"(?:[\s$,;&]|\\[,;!() ]|and|or)*")


class Grader(Protocol):
    """Judges responses. Order is kept and every response gets an outcome, whatever it holds."""

    name: str

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = PLAIN,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per (gold answer, response); ``options`` say how to compare, for all or one each.

        UserError, naming the item of ``ids``, where a gold answer cannot be compared in the way that is asked for.
        """
        ...

    def close(self) -> None:
        """Give processes back, where there are any. A closed grader can be used again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{…}``, braces balanced; None where there is none."""
    boxes = _boxes(text)
    if not boxes:
        return None
    _, begin, end = max(boxes)
    return text[begin:end]


def joined_boxes(text: str) -> str | None:
    r"""Like ``boxed``, together with the boxes before it that are one list: `\boxed{1} and \boxed{2}` is `1, 2`."""
    parts: list[str] = []
    next_start = len(text)
    for start, begin, end in sorted(_boxes(text), reverse=True):
        if end >= next_start:
            continue  # the next one is inside it
        if parts and not _JOINT.fullmatch(text, end + 1, next_start):
            break
        parts.insert(0, text[begin:end])
        next_start = start
    return ", ".join(parts) if parts else None


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """Where complete boxes start, where their contents start and where those end, in one pass."""
    if "\\boxed{" not in text:
        return []
    found = []
    stack: list[tuple[int, int] | None] = []  # open braces; None for those that open no box
    for match in _BRACES.finditer(text):
        if match.group() == "}":
            if stack and (box := stack.pop()):
                found.append((*box, match.start()))
        else:
            stack.append((match.start(), match.end()) if len(match.group()) > 1 else None)
    return found
