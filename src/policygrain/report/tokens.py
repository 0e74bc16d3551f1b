"""A page that shows what a training step did to each token of some samples."""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import atomic_text
from ..results.layout import RunFolder
from ..results.reader import token_view
from ..results.schema import TokenSample, TokenView
from .html import chosen_step, content_security_policy, render

QUANTITIES = ("ratio", "advantage", "entropy", "probability")  # a token may be coloured by


def write_page(run: RunFolder, step: int | None, out: Path | None) -> Path:
    """Write the token view of ``step`` (default: the last there is) as an HTML file and return its path."""
    step, path = chosen_step(run, run.token_steps(), step, "token views")
    out = out or path.with_suffix(".html")
    title = f"{run.path.parent.name}, {run.path.name}, step {step}"
    atomic_text(out, page(token_view(path), title))
    return out


def page(view: TokenView, title: str) -> str:
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
