"""Tables on turns, computed from the exact cases, which take seconds."""

from __future__ import annotations

import torch

from policygrain.cases.turns import ADVANTAGES, RATIOS, agreement, signal_to_noise

from .common import table

PROBLEMS = 4
SIZES = ((4, 4), (8, 4), (12, 4), (12, 2), (12, 12))  # turns, and how many of them matter


def turns_agreement() -> str:
    """Cosines of expected updates with the true gradient, on-policy and off-policy."""
    same, moved = (agreement(PROBLEMS, shift=shift) for shift in (0.0, 1.0))
    rows = [
        [ratio, *(f"{same[ratio, advantage]:.2f} / {moved[ratio, advantage]:.2f}" for advantage in ADVANTAGES)]
        for ratio in RATIOS
    ]
    return table(["ratio", *ADVANTAGES], rows)


def turns_noise() -> str:
    """Signal to noise, divided by that of the response's advantage."""
    rows = []
    for turns, decisions in SIZES:
        found, linear = signal_to_noise(turns, decisions, torch.Generator().manual_seed(0))
        gains = [found[name] / found["response"] for name in ("decisions", "critic")]
        law = (turns / decisions) ** 0.5
        rows.append(
            [
                str(turns),
                str(decisions),
                f"{linear:.2f}",
                f"{gains[0]:.2f}",
                f"{law:.2f}",
                f"{gains[1]:.2f}",
                f"{turns**0.5:.2f}",
            ]
        )
    header = ["turns K", "that matter m", "linear share s", "turns that matter", "ρ^(−1/2)", "exact critic", "√K"]
    return table(header, rows)


BLOCKS = {"turns-agreement": turns_agreement, "turns-noise": turns_noise}
