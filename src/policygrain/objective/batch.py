"""TokenBatch, the input of every part of the objective, and the totals of its optimizer step."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PER_RESPONSE = ("advantages", "staleness")  # or per token
REQUIRED = ("log_probs", "old_log_probs", "advantages", "mask")


def turn_numbers(mask: Tensor) -> Tensor:
    """The turn of each token, from 0: the unbroken runs of ``mask``, each with the gap after it. [batch, tokens]."""
    keep = mask != 0
    starts = keep & ~F.pad(keep, (1, 0))[:, :-1]
    return (starts.cumsum(1) - 1).clamp(min=0)


@dataclass(frozen=True)
class Responses:
    """One value per response of an optimizer step, for functions over groups. All tensors are [responses]."""

    groups: Tensor  # integers: the prompt of each response
    lengths: Tensor  # response tokens in the loss
    old_log_probs: Tensor | None = None  # Σ_t log π_old over these tokens; None: not known

    def sum_by_group(self, values: Tensor, groups: Tensor) -> Tensor:
        """For each number in ``groups`` [rows], Σ of ``values`` [responses] over the responses of the group. [rows]."""
        ids, index = self.groups.unique(return_inverse=True)
        return values.new_zeros(len(ids)).index_add(0, index, values)[torch.searchsorted(ids, groups)]


@dataclass(frozen=True)
class StepTotals:
    """Totals of an optimizer step, by which its micro-batches are normalised; its tensors, if a function reads them."""

    n_tokens: Tensor | int  # response tokens in the loss, at least 1
    n_responses: Tensor | int  # responses with a token in the loss, at least 1
    max_length: int  # L_max of the `seq_mean_token_sum_norm` aggregation
    responses: Responses | None = None  # for functions over groups; None: not known
    # True: statistics such as covariances are of the micro-batch. False: without ``tensors`` they are a ValueError.
    micro_batch_statistics: bool = False
    tensors: TokenBatch | None = None  # the whole step


@dataclass(frozen=True)
class TokenBatch:
    """Responses of one optimizer step, or of a micro-batch of it. All tensors are [batch, tokens] unless noted.

    ``log_probs``, ``entropy`` and ``future_log_probs`` carry gradient; everything else is constant. Log-probabilities
    are natural logarithms under the distribution that was sampled from (temperature included); entropies are
    full-vocabulary, in nats. ``mask`` is 1 on response tokens (the end-of-sequence token is one) and 0 on padding, left
    or right. Values of the other tensors where ``mask`` is 0 have no influence, not even NaN.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor  # [batch] or [batch, tokens]
    mask: Tensor
    entropy: Tensor | None = None
    old_entropy: Tensor | None = None
    ref_log_probs: Tensor | None = None
    # min(π_old/π_engine, C): truncated importance weights when another engine sampled (rollout correction).
    rollout_weights: Tensor | None = None
    # Σ_n log π_n(o_{t+n} | s_t) over the multi-token prediction heads n ≥ 1 whose token the response still has.
    future_log_probs: Tensor | None = None
    old_future_log_probs: Tensor | None = None
    groups: Tensor | None = None  # [batch], integers: the prompt of each response
    # Log-probabilities under the engine that sampled, if it is not π_old (anchors read them).
    rollout_log_probs: Tensor | None = None
    # [batch] or [batch, tokens]: age of the policy that sampled, in versions before the current one.
    staleness: Tensor | None = None
    # The optimizer step that this micro-batch is a part of, whose denominators and statistics count; None: it is one.
    step: StepTotals | None = None
    # L_max of the `seq_mean_token_sum_norm` aggregation; None: the width of the step's tensors.
    max_length: int | None = None

    def __post_init__(self) -> None:
        for name in REQUIRED:
            if not isinstance(value := getattr(self, name), Tensor):
                raise ValueError(f"{name} must be a tensor, got {type(value).__name__}")
        shape = self.log_probs.shape
        if self.log_probs.ndim != 2:
            raise ValueError(f"log_probs must be [batch, tokens], got {tuple(shape)}")
        keep = self.mask != 0
        if self.mask.is_floating_point() and bool((keep & (self.mask != 1)).any()):
            raise ValueError("mask has other values than 0 and 1; weights of tokens are rollout_weights or advantages")
        if keep.shape != shape:
            raise ValueError(f"mask has shape {tuple(keep.shape)}, log_probs {tuple(shape)}")
        values: dict[str, Any] = {"mask": keep}
        for name in (*PER_RESPONSE, *PER_TOKEN):
            if (value := getattr(self, name)) is None:
                continue
            if name in PER_RESPONSE and value.shape == shape[:1]:
                value = value.unsqueeze(1).expand(shape)
            if value.shape != shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, log_probs {tuple(shape)}")
            # Half precision is computed in float32; float32 and float64 stay as they are.
            value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
            values[name] = torch.where(keep, value, 0.0)
        if self.groups is not None and self.groups.shape != shape[:1]:
            raise ValueError(f"groups has shape {tuple(self.groups.shape)}, log_probs {tuple(shape)}")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def whole(self) -> StepTotals:
        if self.step is not None:
            return self.step
        return StepTotals(
            n_tokens=self.mask.sum().clamp(min=1),
            n_responses=(self.lengths > 0).sum().clamp(min=1),
            max_length=self.max_length or self.mask.shape[1],
            responses=None if self.groups is None else Responses(self.groups, self.lengths, self.old_log_probs.sum(1)),
        )

    @property
    def step_tensors(self) -> TokenBatch:
        """The whole optimizer step, or the micro-batch with ``micro_batch_statistics``. ValueError without tensors."""
        if self.step is None:
            return self
        if self.step.micro_batch_statistics:
            return self.replace(step=None)
        if self.step.tensors is None:
            raise ValueError(
                "batch.step_tensors: statistics of the whole optimizer step are read. Give StepTotals that step as "
                "`tensors`, or micro_batch_statistics=True, where results depend on how a step is divided. A function "
                'of your own declares them: `from policygrain.objective import needs`, `@needs("step_log_probs")`.'
            )
        return self.step.tensors

    @property
    def responses(self) -> Responses:
        """All responses of the optimizer step, for functions over groups. ValueError without them."""
        if self.groups is None or self.whole.responses is None:
            raise ValueError("this method reads groups: TokenBatch needs `groups`, and StepTotals `responses`")
        return self.whole.responses

    @property
    def has_entropies(self) -> bool:
        return self.entropy is not None and self.old_entropy is not None

    @property
    def log_ratio(self) -> Tensor:
        """ℓ = log π_θ − log π_old, 0 on padding. [batch, tokens]."""
        return self.log_probs - self.old_log_probs

    @property
    def lengths(self) -> Tensor:  # |o_i| [batch]
        return self.mask.sum(1)

    def mean(self, x: Tensor) -> Tensor:
        """This batch's share of the mean of ``x`` over the whole step's tokens. Shares of micro-batches add up."""
        return (x * self.mask).sum() / self.whole.n_tokens

    def sum_over_windows(self, x: Tensor, size: int, *, back: bool = False) -> Tensor:
        """Σ of ``x``, which is 0 on padding, over t..t+size−1, or ``back`` over t−size+1..t. In float64."""
        # Of running sums, whose cost does not grow with the size; float64 keeps the digits of a short window.
        before = size if back else 1
        running = F.pad(x, (before, size - before)).cumsum(1, dtype=torch.float64)
        return running[:, size:] - running[:, :-size]

    def sum_over_blocks(self, x: Tensor, size: int | None) -> Tensor:
        """Σ of ``x``, which is 0 on padding, over the ``size`` tokens of each token's tile, or over its turn (None)."""
        numbers = turn_numbers(self.mask) if size is None else (self.mask.cumsum(1) - 1).clamp(min=0) // size
        return torch.zeros_like(x).scatter_add(1, numbers, x).gather(1, numbers)

    @staticmethod
    def discounted_sum(x: Tensor, discount: float) -> Tensor:
        """Σ_{k≥t} γ^{k−t} x_k along the last axis, by blocks of matrix products to limit memory. [batch, tokens]."""
        width, block = x.shape[1], 128
        place = torch.arange(block, device=x.device, dtype=x.dtype)
        powers = torch.where(place[:, None] >= place, discount ** (place[:, None] - place), 0.0)  # [k, t]
        out, after = torch.empty_like(x), x.new_zeros(len(x), 1)
        for start in reversed(range(0, width, block)):
            end = min(start + block, width)
            size = end - start
            within = x[:, start:end] @ powers[:size, :size]
            out[:, start:end] = within + after * discount ** (size - place[:size])
            after = out[:, start : start + 1]
        return out

    def rows(self, index: Any, width: int | None = None) -> TokenBatch:
        """The responses at ``index``, of ``width`` columns, as a micro-batch of the same step."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        cut = {name: value[index, :width] if value.ndim == 2 else value[index] for name, value in tensors.items()}
        return self.replace(**cut, step=self.step or replace(self.whole, tensors=self))

    def replace(self, **changes: Any) -> TokenBatch:
        return replace(self, **changes)


TENSORS = [field.name for field in fields(TokenBatch) if str(field.type).startswith("Tensor")]
PER_TOKEN = tuple(name for name in TENSORS if name not in (*PER_RESPONSE, "mask", "groups"))
