"""A page that shows what a training step did to each token of some samples."""

from __future__ import annotations

import html
import math
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import atomic_text, read_json


def write_page(run: Path, step: int | None, out: Path | None) -> Path:
    """Draw the tokens that ``run`` kept of ``step`` (default: its last) as one self-contained HTML file; its path."""
    kept = {int(p.stem.removeprefix("step")): p for p in sorted((run / "tokens").glob("step*.json"))}
    if not kept:
        raise UserError(f"{run}: no tokens were kept here; is it the folder of a run (results/STUDY/runs/ARM/seedS)?")
    step = max(kept) if step is None else step
    if step not in kept:
        raise UserError(f"{run}: tokens of step {step} were not kept. There are: {', '.join(map(str, kept))}.")
    out = out or run / "tokens" / f"step{step:05d}.html"
    atomic_text(out, page(read_json(kept[step]), title=f"{run.parent.name}, {run.name}, step {step}"))
    return out


def page(data: dict[str, Any], title: str) -> str:
    """The page of one step's samples."""
    template = resources.files(__package__).joinpath("tokens.html").read_text(encoding="utf-8")
    shades = [_shades(sample, t) for sample in data["samples"] for t in range(len(sample["tokens"]))]
    # Full colour is what the strongest twentieth of the tokens have, so that small ratios are seen too.
    full = {name: max(1e-6, _quantile([abs(shade[name]) for shade in shades], 0.95)) for name in shades[0]}
    parts = {
        "title": html.escape(title),
        "method": html.escape(data["method"]),
        "scale": f"ratio ×{2 ** full['ratio']:.3g}, probability ×{2 ** full['probability']:.3g}, "
        f"entropy {full['entropy']:.2g} nats, advantage {full['advantage']:.2g}",
        "samples": "\n".join(_sample(sample, full) for sample in data["samples"]),
    }
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def _shades(sample: dict[str, Any], t: int) -> dict[str, float]:
    """What a token may be coloured by; factors as logarithms of base 2."""
    return {
        "ratio": math.log2(max(sample["ratio"][t], 1e-9)),
        "advantage": sample["advantage"] if sample["in_loss"][t] else 0.0,
        "entropy": sample["entropy_change"][t],
        "probability": (sample["log_prob"][t] - sample["log_prob_old"][t]) / math.log(2),
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _sample(sample: dict[str, Any], full: dict[str, float]) -> str:
    verdict = "right" if sample["correct"] else "wrong"
    facts = f"{verdict}, reward {sample['reward']:.2f}, advantage {sample['advantage']:+.2f}"
    tokens = "".join(_token(sample, t, full) for t in range(len(sample["tokens"])))
    return (
        f'<article class="{verdict}"><header><code>{html.escape(sample["prompt"].strip())}</code>'
        f"<span>{facts}</span></header><p>{tokens}</p></article>"
    )


def _token(sample: dict[str, Any], t: int, full: dict[str, float]) -> str:
    ratio, in_loss = sample["ratio"][t], sample["in_loss"][t]
    clip = "low" if sample["clipped_low"][t] else "high" if sample["clipped_high"][t] else ""
    shades = {name: max(-1.0, min(1.0, shade / full[name])) for name, shade in _shades(sample, t).items()}
    style = ";".join(f"--{name}:{shade:.3f}" for name, shade in shades.items())
    marks = " ".join(
        name for name, on in (("clip", clip), ("drop", sample["entropy_drop"][t]), ("out", not in_loss)) if on
    )
    facts = {
        "ratio": f"{ratio:.4f}",
        "log-probability": f"{sample['log_prob_old'][t]:.3f} → {sample['log_prob'][t]:.3f}",
        "entropy": f"{sample['entropy_change'][t]:+.3f} nats",
        "clipped": clip or "no",
        "in TEPO's mask": "yes" if sample["entropy_drop"][t] else "no",
        "in the loss": "yes" if in_loss else "no",
    }
    hint = html.escape("\n".join(f"{k}: {v}" for k, v in facts.items()), quote=True)
    text = html.escape(sample["tokens"][t]).replace("\n", "↵<br>") or "∅"
    return f'<i class="{marks}" style="{style}" title="{hint}">{text}</i>'
