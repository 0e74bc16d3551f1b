"""Verifiers by name."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError, did_you_mean
from .math import MathGrader
from .numeric import NumericGrader
from .outcome import Grader

GRADERS: dict[str, Callable[[], Grader]] = {"numeric": NumericGrader, "math": MathGrader}


def open_grader(name: str) -> Grader:
    """The grader called ``name``, to be used in a `with` or closed. Processes start when there is work for them."""
    if name not in GRADERS:
        raise UserError(f"grader: there is no {name!r}.{did_you_mean(name, GRADERS)}")
    return GRADERS[name]()
