"""What a verifier says, and what one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Outcome = Literal["correct", "incorrect", "unparsable", "timeout", "error"]


class Verifier(Protocol):
    """Judges responses. Order is kept and every response gets an outcome, whatever it holds."""

    name: str

    def verify(self, golds: Sequence[str], responses: Sequence[str]) -> list[Outcome]:
        """One outcome per (gold answer, response)."""
        ...


def boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{…}``, braces balanced; None where there is none."""
    start = len(text)
    while (start := text.rfind("\\boxed{", 0, start)) >= 0:
        depth, begin = 1, start + len("\\boxed{")
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[begin:end]
    return None
