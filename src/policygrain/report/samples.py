"""The page of the samples of a model, or of two: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ..analysis import accuracy
from ..analysis.evaluated_models import EvaluatedModel, ModelGroup, benchmarks_of
from ..errors import UserError
from ..files import atomic_text
from ..results import evaluated_samples
from .html import content_security_policy, render
from .show import protocol

MOST = 20_000  # samples in one page, which a browser shows without a noticeable pause


def write_page(groups: Sequence[ModelGroup], out: Path) -> Path:
    """Write the samples of one run, or of two, as one self-contained HTML file, and return its path."""
    if len(groups) > 2 or any(len(g.models) > 1 for g in groups):
        raise UserError("--page shows the samples of one run or of two; name their folders (…/runs/ARM/seedS).")
    count = sum(sum(r.outcomes.values()) for g in groups for r in g.models[0].records.values())
    if count > MOST:
        raise UserError(f"--page: {count:,} samples, and a page holds {MOST:,}; choose with --benchmark NAME.")
    runs = [(g.name, g.models[0]) for g in groups]
    content = {
        "runs": [{"name": name, "prompt": model.prompt} for name, model in runs],
        "protocol": "\n".join(protocol(groups)[1:]),
        "benchmarks": [_benchmark(name, [model for _, model in runs]) for name in benchmarks_of(groups)],
    }
    atomic_text(out, page(content, " and ".join(name for name, _ in runs)))
    return out


def page(content: dict[str, Any], title: str) -> str:
    """The page of ``content``."""
    folder = resources.files(__package__)
    script = (folder / "samples.js").read_text(encoding="utf-8")
    return render(
        folder / "samples.html",
        title=title,
        content=content,
        script=Markup(script),  # code is not escaped
        policy=content_security_policy(script),
    )


def _benchmark(name: str, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """The data of one benchmark for samples.js.

    `problems` has each problem once; `samples` has [index of the problem, number of the sample, per model
    [outcome, tokens, finished, response] or None].
    """
    problems: dict[tuple[str, str, str], int] = {}
    pairs: dict[tuple[int, int], list[list[Any] | None]] = {}
    for i, model in enumerate(models):
        for row in evaluated_samples(model.folder, model.records[name]) if name in model.records else []:
            problem = problems.setdefault((row.id, row.problem, row.gold), len(problems))
            pair = pairs.setdefault((problem, row.sample), [None] * len(models))
            pair[i] = [row.outcome, row.tokens, row.finished, row.response]
    scores = [m.records[name].per_problem if name in m.records else None for m in models]
    return {
        "name": name,
        "accuracy": [accuracy([np.array(s)])[:3] if s else None for s in scores],
        "problems": list(problems),
        "samples": [[*place, pair] for place, pair in sorted(pairs.items(), key=lambda item: item[0])],
    }
