"""How the answers of a problem are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_DEGREES = re.compile(r"\bdegrees\b|\bdegree measure|\\circ|\\degree|°")


@dataclass(frozen=True)
class Options:
    """How answers are compared. Tolerances are for numbers; they are bounds on the difference, not roundings."""

    relative_tolerance: float | None = None  # as a share of the gold answer
    absolute_tolerance: float | None = None
    # The gold answer cannot be read as mathematics, and this is known: answers are compared as text.
    text: bool = False
    # The gold answer is a list: all its items are required, in any order, in one box or in adjacent ones.
    list_answer: bool = False
    # The problem speaks of degrees: a degree sign may be left out or added.
    degrees: bool = False
    # Of a problem whose answer is a program: tests, the function that they call, code that comes before both, and the
    # signature that a completion continues. Setup, signature and tests are programs.
    tests: str = ""
    entry_point: str = ""
    setup: str = ""
    signature: str = ""
    seconds: float | None = None  # of processor time for the program, where its solution is slow

    @classmethod
    def of(cls, problem: Any) -> Options:
        """The options of a ``tasks.problem.Problem``."""
        if problem.tests:
            own = {key: getattr(problem, key) for key in ("tests", "entry_point", "setup", "signature")}
            return cls(**own, seconds=problem.seconds)
        degrees = _DEGREES.search(problem.problem) is not None
        return cls(problem.relative_tolerance, problem.absolute_tolerance, problem.text, problem.list_answer, degrees)

    @property
    def exact(self) -> bool:
        """Whether a single value is compared, without a tolerance and not as text."""
        return self == Options(degrees=self.degrees)

    def within_tolerance(self, gold: Any, given: Any) -> bool:
        """Whether the number ``given`` is within a tolerance of ``gold``; False if no tolerance is set."""
        difference = abs(gold - given)
        relative, absolute = self.relative_tolerance, self.absolute_tolerance
        return bool(
            (relative is not None and difference <= relative * abs(gold))
            or (absolute is not None and difference <= absolute)
        )


DEFAULT = Options()
