"""Outcomes of grading, and the interface of graders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, Self, get_args

from .options import DEFAULT, Options

Outcome = Literal["correct", "incorrect", "unparsable", "timeout", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Grader(Protocol):
    """Grades responses. Any text gets an outcome; outcomes are in the order of the responses."""

    name: str  # part of evaluation records: it changes when outcomes may change

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = DEFAULT,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per (gold answer, response); ``options`` are for all or one each.

        Raises UserError, naming the item of ``ids``, if a gold answer cannot be compared as ``options`` say.
        """
        ...

    def close(self) -> None:
        """End worker processes, if there are any. A closed grader can be used again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
