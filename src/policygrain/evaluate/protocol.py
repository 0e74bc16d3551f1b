"""What a score hangs on: records say it, and only records that agree in it stand in one table."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..provenance import file_digest
from ..study.schema import Benchmark, Sampling, Study
from ..tasks import registry
from ..tasks.prompts import PromptRenderer


def sampling_of(study: Study, benchmark: Benchmark) -> Sampling:
    """The benchmark's own way to draw responses, else its registry entry's if the study says so, else the study's."""
    default = study.evaluation.sampling
    if benchmark.sampling is not None or not study.evaluation.registered_sampling:
        return benchmark.sampling or default
    registered = registry.protocol(benchmark.source)
    return default.model_copy(update=registered.model_dump()) if registered else default


def protocol(study: Study, renderer: PromptRenderer, data: Path, model: str, grader: str) -> dict[str, Any]:
    """Everything that could change a score; ``model`` and ``grader`` are their digest and name."""
    from ..rollout.open import resolve_engine  # imports torch, which estimating costs does without

    return {
        "model": model,
        "prompt": renderer.digest,
        "grader": grader,
        "engine": resolve_engine(study.evaluation.engine),
        "seed": study.evaluation.seed,
        "benchmarks": {
            b.name: {
                "sampling": sampling_of(study, b).model_dump(),
                "problems": file_digest(data / "benchmarks" / f"{b.name}.jsonl"),
            }
            for b in study.evaluation.benchmarks
        },
    }


def key_of(content: dict[str, Any]) -> str:
    """A short name for a protocol."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def comparable(content: dict[str, Any]) -> str:
    """Records with the same value may stand in one table: all but the model is equal."""
    return key_of({k: v for k, v in content.items() if k != "model"})


def sampled_under(content: dict[str, Any]) -> str:
    """Responses with the same value are the same, whoever judges them."""
    return key_of({k: v for k, v in content.items() if k != "grader"})
