"""Clips made for stale rollouts: TOPR and M2PO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..settings import setting
from .clip import Clip, Surrogate
from .part import needs

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import TokenBatch


@dataclass(frozen=True, kw_only=True)
class Topr(Clip):
    """u = sg[w] Â log π_θ; w = 1 where Â > 0, and min(r, cap) elsewhere. TOPR (2503.14286 eq. 8).

    Good responses are imitated, however unlikely they have become; bad ones count only as far as the policy still gives
    them. No token loses its gradient. The paper's ratio is that of the response (`product`).
    """

    name: Literal["topr"] = "topr"
    cap: float = setting(1.0, gt=0, description="largest weight where the advantage is not positive")

    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        weight, advantages = ratio.detach(), batch.advantages
        is_high = (weight > self.cap) & (advantages < 0) & batch.mask
        weight = weight.clamp(max=self.cap).masked_fill(advantages > 0, 1.0)
        return Surrogate(weight * advantages * batch.log_probs, batch.mask & False, is_high, silenced=False)


@dataclass(frozen=True, kw_only=True)
class M2po(Clip):
    """u = M r Â; M = 0 for the tokens that moved furthest, so that the mean of ℓ² is at most ``budget``. M2PO.

    Source: 2510.01161 algorithm 1. Only tokens with Â (r − 1) > 0 count, those that PPO's clip could silence: of the
    whole step's, those with the largest ℓ² are masked until the mean over the others is within the budget. A masked
    token has value 0, and denominators stay. The authors' code computes a clip range per call instead; AReaL's masks by
    ℓ of π_old against the engine, whatever the advantage.
    """

    name: Literal["m2po"] = "m2po"
    budget: float = setting(0.04, gt=0, description="τ: largest mean of the squared log-ratio")

    @needs("step_log_probs")
    def __call__(self, ratio: Tensor, batch: TokenBatch) -> Surrogate:
        step = batch.step_tensors
        squares = step.log_ratio.detach()[_pushed(step)].square().sort().values
        # Means of the smallest n, which grow with n.
        n_kept = int((squares.cumsum(0) / squares.new_ones(len(squares)).cumsum(0) <= self.budget).sum())
        # Tokens as far out as the first that is masked are masked with it.
        bound = float(squares[n_kept]) if n_kept < len(squares) else math.inf
        log_ratio = batch.log_ratio.detach()
        masked = _pushed(batch) & (log_ratio.square() >= bound)
        value = (ratio * batch.advantages).masked_fill(masked, 0.0)
        return Surrogate(value, masked & (log_ratio < 0), masked & (log_ratio > 0))


def _pushed(batch: TokenBatch) -> Tensor:
    """Tokens already moved in the direction of their advantage: Â ℓ > 0. [batch, tokens]."""
    return (batch.advantages * batch.log_ratio.detach() > 0) & batch.mask
