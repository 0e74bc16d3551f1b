"""What all graders share: outcomes, options of the comparison, and the interface."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

Outcome = Literal["correct", "incorrect", "unparsable", "timeout", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
UNREADABLE_GOLD = "unreadable_gold"  # reported by a worker in place of an outcome
_DEGREES = re.compile(r"\bdegrees\b|\bdegree measure|\\circ|\\degree|°")


@dataclass(frozen=True)
class Options:
    """Options of the comparison. Tolerances bound the difference of two numbers; nothing is rounded."""

    list_answer: bool = False  # all items of the gold answer are required, in any order, in one box or adjacent ones
    relative_tolerance: float | None = None  # as a share of the gold answer
    absolute_tolerance: float | None = None
    text: bool = False  # compared as text: the gold answer is no mathematics
    tests: str = ""  # the answer is a program; source of its tests
    entry_point: str = ""  # the function that they call
    setup: str = ""  # source that is executed before the program and before the tests
    signature: str = ""  # source that a completion continues
    seconds: float | None = None  # of processor time for the program; None: the grader's default
    degrees: bool = False  # the problem mentions degrees: a degree sign may be left out or added

    @property
    def exact(self) -> bool:
        return self == Options(degrees=self.degrees)

    def within_tolerance(self, gold: Any, given: Any) -> bool:
        """Whether the number ``given`` is within a tolerance of ``gold``; False if no tolerance is set."""
        tolerances = ((self.relative_tolerance, abs(gold)), (self.absolute_tolerance, 1))
        return any(abs(gold - given) <= share * size for share, size in tolerances if share is not None)


DEFAULT = Options()


def speaks_of_degrees(problem: str) -> bool:
    """Whether a problem mentions degrees, so that its answers are compared with the option `degrees`."""
    return _DEGREES.search(problem) is not None


class UnreadableGold(Exception):
    """The gold answer cannot be read: an error of the dataset."""


class Item(NamedTuple):
    """A response, or an answer, to be graded; error messages begin with ``name``."""

    gold: str
    text: str
    options: Options = DEFAULT
    name: str = "item"


class Grader(ABC):
    """Grades responses. Any text gets an outcome; outcomes are in the order of the responses."""

    name: str  # part of evaluation records: it changes when outcomes may change
    pool: Any = None  # of worker processes, for graders that have one

    @abstractmethod
    def grade(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response. Raises UserError, which names the item, if its gold answer cannot be compared."""

    def close(self) -> None:
        """End worker processes, if there are any. A closed grader can be used again."""
        if self.pool is not None:
            self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
