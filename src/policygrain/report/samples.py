"""Self-contained HTML pages: samples of models, and the effect of a step on each token."""

from __future__ import annotations

import math
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
from ..paths import RunFolder
from ..records import TokenSample, TokenView
from ..results import evaluated_samples, samples, token_view
from .html import chosen_step, content_security_policy, render
from .show import protocol

QUANTITIES = ("ratio", "advantage", "entropy", "probability")  # by which tokens can be coloured
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


def write_rollouts(run: RunFolder, step: int | None, out: Path | None) -> Path:
    """Write the rollouts of ``step`` (default: the last one) of a run by verl as an HTML file, and return its path."""
    step, path = chosen_step(run, run.rollout_steps(), step, "rollouts")
    rows = samples(path, "Train the run again.")
    problems = {row.id: (row.id, row.problem, row.gold) for row in rows}
    numbers = {name: i for i, name in enumerate(problems)}
    cells = [[numbers[r.id], r.sample, [[r.outcome, r.tokens, r.finished, r.response]]] for r in rows]
    name = f"{run.path.parent.name}/{run.path.name}"
    shown = {"name": f"step {step}", "accuracy": [None], "problems": list(problems.values()), "samples": cells}
    content = {"runs": [{"name": name, "prompt": None}], "protocol": "rollouts of training", "benchmarks": [shown]}
    out = out or path.with_suffix(".html")
    atomic_text(out, page(content, f"{name}, step {step}"))
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


# ---- tokens ----------------------------------------------------------------------------------------------------------


def write_tokens(run: RunFolder, step: int | None, out: Path | None) -> Path:
    """Write the token view of ``step`` (default: the last one) as an HTML file, and return its path."""
    step, path = chosen_step(run, run.token_steps(), step, "token views")
    out = out or path.with_suffix(".html")
    title = f"{run.path.parent.name}, {run.path.name}, step {step}"
    atomic_text(out, token_page(token_view(path), title))
    return out


def token_page(view: TokenView, title: str) -> str:
    """The page of one step's samples."""
    shades = [_shades(sample, t) for sample in view.samples for t in range(len(sample.tokens))]
    # Full colour is the 95% quantile of the tokens, so that small ratios are visible too.
    full = {name: max(1e-6, _quantile([abs(shade[name]) for shade in shades], 0.95)) for name in QUANTITIES}
    return render(
        resources.files(__package__) / "tokens.html",
        policy=content_security_policy(),
        title=title,
        method=view.method,
        scale=f"ratio ×{2 ** full['ratio']:.3g}, probability ×{2 ** full['probability']:.3g}, "
        f"entropy {full['entropy']:.2g} nats, advantage {full['advantage']:.2g}",
        samples=[
            {
                "outcome": "right" if sample.correct else "wrong",
                "prompt": sample.prompt.strip(),
                "reward": f"{sample.reward:.2f}",
                "advantage": f"{sample.advantage:+.2f}",
                "tokens": [_token(sample, t, full) for t in range(len(sample.tokens))],
            }
            for sample in view.samples
        ],
    )


def _shades(sample: TokenSample, t: int) -> dict[str, float]:
    """The quantities of one token; ratios and factors of probability as logarithms of base 2."""
    return {
        "ratio": math.log2(max(sample.ratio[t], 1e-9)),
        "advantage": sample.advantage if sample.in_loss[t] else 0.0,
        "entropy": sample.entropy_change[t],
        "probability": (sample.log_prob[t] - sample.log_prob_old[t]) / math.log(2),
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def _token(sample: TokenSample, t: int, full: dict[str, float]) -> dict[str, Any]:
    """The values of one token in the template; its shades are from −1 to 1, where ``full`` is 1."""
    in_loss, in_mask = sample.in_loss[t], sample.entropy_drop[t]
    clipped = "low" if sample.clipped_low[t] else "high" if sample.clipped_high[t] else ""
    return {
        "text": sample.tokens[t],
        "marks": [name for name, on in (("clip", clipped), ("drop", in_mask), ("out", not in_loss)) if on],
        "shades": {name: max(-1.0, min(1.0, shade / full[name])) for name, shade in _shades(sample, t).items()},
        "facts": {
            "ratio": f"{sample.ratio[t]:.4f}",
            "log-probability": f"{sample.log_prob_old[t]:.3f} → {sample.log_prob[t]:.3f}",
            "entropy": f"{sample.entropy_change[t]:+.3f} nats",
            "clipped": clipped or "no",
            "in TEPO's mask": "yes" if in_mask else "no",
            "in the loss": "yes" if in_loss else "no",
        },
    }
