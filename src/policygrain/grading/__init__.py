"""Graders: ``numeric`` compares numbers, ``math`` mathematical expressions; ``code`` runs programs against tests."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError, did_you_mean
from .answers import MathGrader, NumericGrader
from .code import CodeGrader
from .grader import Grader, Item, Options, Outcome

GRADERS: dict[str, Callable[..., Grader]] = {"numeric": NumericGrader, "math": MathGrader}

__all__ = ["CodeGrader", "Grader", "Item", "MathGrader", "NumericGrader", "Options", "Outcome", "open_grader"]


def open_grader(name: str, extraction: str = "boxed", tests: bool = False) -> Grader:
    """The grader ``name``, with ``tests`` for programs, too. UserError if there is none, or no isolation of these."""
    if name not in GRADERS:
        raise UserError(f"grader: there is no {name!r}.{did_you_mean(name, GRADERS)}")
    grader = GRADERS[name](extraction=extraction)
    return CodeGrader(answers=grader) if tests else grader
