"""Validation inside the loop: the policy as it samples, on problems that neither training nor test has."""

from __future__ import annotations

from ..rollout.engine import Engine, Request
from ..study.schema import Training
from ..tasks.problem import Problem
from ..tasks.prompts import PromptRenderer
from ..verify import Options, Verifier


def validate(
    problems: list[Problem], engine: Engine, verifier: Verifier, renderer: PromptRenderer, settings: Training
) -> dict[str, float]:
    """Accuracy and mean length of one sampled response per problem; the same seeds every time."""
    requests = [
        Request(renderer.ids(p.problem), seed, settings.max_tokens, settings.temperature, log_probs=False)
        for seed, p in enumerate(problems)
    ]
    responses = engine.generate(requests)
    texts = renderer.tokenizer.batch_decode([r.ids for r in responses], skip_special_tokens=True)
    options = [Options.of(p) for p in problems]
    outcomes = verifier.verify([p.answer for p in problems], texts, options, [p.id for p in problems])
    return {
        "validation_accuracy": sum(o == "correct" for o in outcomes) / len(outcomes),
        "validation_length": sum(len(r.ids) for r in responses) / len(responses),
    }
