"""Tables on other trainers."""

from __future__ import annotations

import math

import numpy as np
import torch

from policygrain import TokenBatch
from policygrain.trainers.table import FEATURES, TRAINERS
from policygrain.objective.clip import M2po

from .common import block, read, table


@block("in-trl")
def in_trl() -> str:
    """What PolicyGrainTrainer adds to TRL's step."""
    found = read("objective_cost")["in_trl"]
    rows = [
        [f"`{name}`", f"{row['added'] * 1e3:+.1f} ms", f"{row['share']:+.2%}"] for name, row in found["methods"].items()
    ]
    return table(["objective", "added to a step", "share of it"], rows) + (
        f"\n\nA step of TRL takes {found['seconds_per_step']:.2f} s."
    )


@block("same-name")
def same_name() -> str:
    """What names mean in other trainers, from the record that a test holds."""
    record = read("same-name", "docs/integrations")
    rows = []
    for row in record["names"]:
        depends = row["depends_on_division"]
        losses = (
            " / ".join(f"{loss:.4f}" for loss in row["losses"]) if depends else "–" if depends is None else "the same"
        )
        paper = f"`{row['preset']}`"
        equals = "as published" if row["equals"] == row["preset"] else row["equals"] or "none that is known"
        trainer = f"{row['trainer']} {record['versions'][row['trainer']]}"
        rows.append(
            [trainer, f"`{row['setting']}`", paper, equals, f"{row['cosine']:.2f}", f"{row['norm']:.2f}", losses]
        )
    header = ["trainer", "setting", "preset", "equals", "cosine", "norm", "1 / 2 / 4 micro-batches"]
    return table(header, rows)


BUDGET = 0.04  # M2PO's τ in all three
SMALLEST_BAND = 0.7, 1.5  # of the authors' code
RESPONSES, LENGTH = 200, 100


@block("m2po-names")
def m2po_names() -> str:
    """Share of tokens that three rules of the name M2PO silence, on log-ratios of Student's t with 4 degrees."""
    rng = np.random.default_rng(0)
    unit = torch.as_tensor(rng.standard_t(4, (RESPONSES, LENGTH)))
    advantages = torch.as_tensor(rng.choice([-1.0, 1.0], RESPONSES))
    rows = []
    for scale in (0.15, 0.2, 0.3, 0.5):
        log_ratio = scale * unit
        old = torch.full_like(unit, -20.0)
        batch = TokenBatch(old + log_ratio, old, advantages, torch.ones_like(unit))
        masked = M2po(budget=BUDGET)(log_ratio.exp(), batch)
        shares = (masked.low | masked.high, _band(log_ratio, advantages), _furthest(log_ratio))
        rows.append([f"{scale:g}", *(f"{float(silenced.double().mean()):.0%}" for silenced in shares)])
    header = ["scale", "the paper, Trinity-RFT, `m2po`", "the authors' code", "AReaL"]
    return table(header, rows)


def _band(log_ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Tokens that PPO clips outside [exp −t, exp t], with Σ min(ℓ², t²) = τn over tokens that moved as Â asks."""
    sign = advantages.unsqueeze(1)
    squares = log_ratio[sign * log_ratio > 0].square()
    low, high = 0.0, float(squares.max())
    for _ in range(60):  # of t²: its mean rises with t
        middle = (low + high) / 2
        low, high = (middle, high) if squares.clamp(max=middle).mean() < BUDGET else (low, middle)
    t, (smallest, largest) = math.sqrt(high), SMALLEST_BAND
    above, below = max(t, math.log(largest)), min(-t, math.log(smallest))
    return ((sign > 0) & (log_ratio > above)) | ((sign < 0) & (log_ratio < below))


def _furthest(log_ratio: torch.Tensor) -> torch.Tensor:
    """The tokens with the largest ℓ², whatever the advantage, so that the mean over the others is below τ."""
    squares = log_ratio.square().flatten().sort().values
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1)
    count = int((means < BUDGET).sum())
    return log_ratio.square() > (squares[count - 1] if count else -1.0)


@block("trainers")
def trainers() -> str:
    """A row per feature that some trainer lacks."""
    rows = [f"| a study asks for | {' | '.join(f'`{name}`' for name in TRAINERS)} |", "|---|---|---|---|"]
    rows.append("| several processes per run | – | yes | yes |")
    rows.append("| runs that are paired with those of the loop | yes | yes | without dynamic sampling, on one GPU |")
    for feature in FEATURES:
        has = ("yes" if trainer in feature.trainers else "–" for trainer in TRAINERS)
        rows.append(f"| {feature.text} | {' | '.join(has)} |")
    return "\n".join(rows)
