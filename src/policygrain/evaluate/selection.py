"""Training problems selected by how often a model solves them.

Problems that the model never or always solves give groups with equal rewards, which have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..data.problem import Problem
from ..errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str]


def solve_rates(samples: pd.DataFrame) -> dict[Key, float]:
    """Id and text of a problem → share of its sampled responses that are correct."""
    sampled = samples[~samples["greedy"]]
    outcomes: dict[Key, list[bool]] = {}
    for identity, text, outcome in zip(sampled["id"], sampled["problem"], sampled["outcome"], strict=True):
        outcomes.setdefault((identity, text), []).append(outcome == "correct")
    return {problem: sum(graded) / len(graded) for problem, graded in outcomes.items()}


def select(
    problems: Sequence[Problem], rates: dict[Key, float], least: float | None = None, most: float | None = None
) -> list[Problem]:
    """The problems with a solve rate from ``least`` to ``most``; by default above 0 and below 1.

    UserError if a problem has no rate, or if none is left.
    """
    keys = [(p.id, p.problem) for p in problems]
    if missing := [name for name, text in keys if (name, text) not in rates]:
        raise UserError(
            f"{len(missing)} of {len(problems)} problems have no responses (the first: {missing[0]}). Evaluate the "
            "whole set, without --size."
        )

    def fits(rate: float) -> bool:
        return (rate > 0 if least is None else rate >= least) and (rate < 1 if most is None else rate <= most)

    selected = [p for p, key in zip(problems, keys, strict=True) if fits(rates[key])]
    if not selected:
        rate = sum(rates[key] for key in keys) / len(keys)
        raise UserError(f"none of {len(problems)} problems is in these bounds; {rate:.1%} of responses are correct.")
    return selected
