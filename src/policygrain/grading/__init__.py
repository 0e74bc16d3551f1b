"""Verifying answers: ``Grader`` is the interface; ``numeric`` compares numbers, ``math`` mathematics."""

from .math import MathGrader
from .numbers import Options
from .numeric import NumericGrader
from .open import GRADERS, open_grader
from .outcome import Grader, Outcome

__all__ = ["GRADERS", "Grader", "MathGrader", "NumericGrader", "Options", "Outcome", "open_grader"]
