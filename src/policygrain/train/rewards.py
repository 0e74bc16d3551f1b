"""Grading of responses in training and validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..grading import Grader, Options, Outcome
from ..rollout.engine import Response
from ..tasks.problem import Problem
from .ranks import map_over_ranks


def grade_responses(
    problems: Sequence[Problem], responses: Sequence[Response], grader: Grader, tokenizer: Any
) -> list[Outcome]:
    """One outcome per (problem, response); every rank grades a share of them."""

    def outcomes(pairs: list[tuple[Problem, Response]]) -> list[Outcome]:
        share, answers = zip(*pairs, strict=True)
        texts = tokenizer.batch_decode([r.ids for r in answers], skip_special_tokens=True)
        return grader.grade(
            [p.answer for p in share],
            texts,
            [Options.of(p) for p in share],
            [p.id for p in share],
        )

    return map_over_ranks(outcomes, list(zip(problems, responses, strict=True)))
