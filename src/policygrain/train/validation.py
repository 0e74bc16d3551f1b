"""Validation during training: accuracy of samples on problems that are in neither training nor benchmarks."""

from __future__ import annotations

from ..grading import Grader
from ..rollout.engine import Engine, Request
from ..study.schema import Training
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from .ranks import map_over_ranks
from .rewards import grade_responses


def validate(
    problems: list[Problem], engine: Engine, grader: Grader, renderer: PromptRenderer, settings: Training
) -> dict[str, float]:
    """Accuracy and mean length (policy tokens) of one response per problem, with the same seeds in every call."""
    requests = [
        Request(
            renderer.ids(p.problem, bool(p.tests)),
            seed,
            settings.max_tokens,
            settings.temperature,
            log_probs=False,
            tool=renderer.tool(p.source),
        )
        for seed, p in enumerate(problems)
    ]
    responses = map_over_ranks(engine.generate, requests)
    engine.sleep()
    outcomes = grade_responses(problems, responses, grader, renderer.tokenizer)
    return {
        "validation_accuracy": sum(o == "correct" for o in outcomes) / len(outcomes),
        "validation_length": sum(r.length for r in responses) / len(responses),
    }
