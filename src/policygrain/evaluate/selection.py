"""Training problems selected by how often a model solves them.

A group of responses to a problem that the model never or always solves has equal rewards, and no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import UserError
from ..results.schema import EvaluatedSample
from ..tasks.problem import Problem


def solve_rates(samples: Iterable[EvaluatedSample]) -> dict[str, float]:
    """Problem id → share of its responses that are correct."""
    outcomes: dict[str, list[bool]] = {}
    for sample in samples:
        outcomes.setdefault(sample.id, []).append(sample.outcome == "correct")
    return {problem: sum(found) / len(found) for problem, found in outcomes.items()}


def select(
    problems: Sequence[Problem], rates: dict[str, float], least: float | None = None, most: float | None = None
) -> list[Problem]:
    """The problems with a solve rate from ``least`` to ``most``; by default above 0 and below 1.

    UserError if a problem has no rate, or if none is left.
    """
    if missing := [p.id for p in problems if p.id not in rates]:
        raise UserError(
            f"{len(missing)} of {len(problems)} problems have no responses (the first: {missing[0]}). Evaluate the "
            "whole set, without --size."
        )

    def fits(rate: float) -> bool:
        return (rate > 0 if least is None else rate >= least) and (rate < 1 if most is None else rate <= most)

    selected = [p for p in problems if fits(rates[p.id])]
    if not selected:
        rate = sum(rates[p.id] for p in problems) / len(problems)
        raise UserError(f"none of {len(problems)} problems is in these bounds; {rate:.1%} of responses are correct.")
    return selected
