"""Graders: ``numeric`` compares numbers, ``math`` compares mathematical expressions."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError, did_you_mean
from .extraction import PROTOCOLS, boxed, extract
from .math import MathGrader
from .numeric import NumericGrader
from .options import Options
from .outcome import Grader, Outcome

GRADERS: dict[str, Callable[..., Grader]] = {"numeric": NumericGrader, "math": MathGrader}

__all__ = [
    "GRADERS",
    "PROTOCOLS",
    "Grader",
    "MathGrader",
    "NumericGrader",
    "Options",
    "Outcome",
    "boxed",
    "extract",
    "open_grader",
]


def open_grader(name: str, extraction: str = "boxed") -> Grader:
    """The grader ``name`` with the answer extraction protocol ``extraction``; worker processes start on first use.

    Raises UserError if there is no such grader or protocol.
    """
    if name not in GRADERS:
        raise UserError(f"grader: there is no {name!r}.{did_you_mean(name, GRADERS)}")
    return GRADERS[name](extraction=extraction)
