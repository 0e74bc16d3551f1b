"""The evaluation protocol, all settings that a score depends on. Only scores with the same protocol are compared."""

from __future__ import annotations

from typing import Any, Literal

from .. import digests
from ..results.layout import DataFolder
from ..study.schema import Study
from ..tasks.prompts import PromptRenderer
from ..tasks.registry import sampling_of


def protocol(study: Study, renderer: PromptRenderer, data: DataFolder, model: str, grader: str) -> dict[str, Any]:
    """All settings that a score depends on; ``model`` is the digest of the model, ``grader`` the name of the grader."""
    from ..model.open_engine import resolve_engine  # imports torch, which is not needed to estimate costs

    return {
        "model": model,
        "prompt": renderer.digest,
        "grader": grader,
        "engine": resolve_engine(engine_of(study)),
        "seed": study.evaluation.seed,
        **({"greedy": True} if study.evaluation.greedy else {}),
        "benchmarks": {
            b.name: {
                "sampling": sampling_of(study, b).model_dump(),
                "problems": digests.of_file(data.benchmark(b.name)),
                "extraction": b.extraction or study.extraction,
            }
            for b in study.evaluation.benchmarks
        },
    }


def engine_of(study: Study) -> Literal["auto", "vllm", "transformers"]:
    """The engine of evaluation, or of training if the process that trains a run evaluates it."""
    return study.training.engine if study.evaluation.after_training else study.evaluation.engine


def response_key(protocol: dict[str, Any]) -> str:
    """The digest of the parts of a protocol that sampled responses depend on: all but grader and extraction."""
    benchmarks = {
        name: {k: v for k, v in settings.items() if k != "extraction"}
        for name, settings in protocol["benchmarks"].items()
    }
    return digests.of_json({**protocol, "grader": None, "benchmarks": benchmarks})
