"""Validation inside the loop: the policy as it samples, on problems that neither training nor test has."""

from __future__ import annotations

from ..rollout.engine import Engine, Request
from ..study.schema import Training
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from ..verify import Verifier
from .judging import judge
from .ranks import dealt


def validate(
    problems: list[Problem], engine: Engine, verifier: Verifier, renderer: PromptRenderer, settings: Training
) -> dict[str, float]:
    """Accuracy and mean length of one sampled response per problem; the same seeds every time."""
    requests = [
        Request(renderer.ids(p.problem), seed, settings.max_tokens, settings.temperature, log_probs=False)
        for seed, p in enumerate(problems)
    ]
    responses = dealt(engine.generate, requests)
    engine.sleep()
    outcomes = judge(problems, responses, verifier, renderer.tokenizer)
    return {
        "validation_accuracy": sum(o == "correct" for o in outcomes) / len(outcomes),
        "validation_length": sum(len(r.ids) for r in responses) / len(responses),
    }
