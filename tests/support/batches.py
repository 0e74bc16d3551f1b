"""Batches: random ones for the properties, with what a method makes of one, and small ones by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain import Method, TokenBatch, method
from policygrain.integrations.conformance import WITH_GRADIENT, Fields, random_fields
from policygrain.objective import method_names
from policygrain.objective.loss import merge_metrics
from policygrain.objective.method import resolved_methods

# Fewer where the profile has fewer: tests/repository/test_light_installation.py runs these tests a second time.
few = settings(deadline=None, derandomize=True, max_examples=min(30, settings().max_examples))

OWN = yaml.safe_load(Path(__file__).with_name("methods.yaml").read_text())
METHODS: dict[str, Method] = {name: method(name) for name in method_names()} | resolved_methods(OWN)


@st.composite
def fields(draw: st.DrawFn, min_live: int = 0, correction: bool = False) -> Fields:
    """``random_fields`` of up to six responses, of which at least ``min_live`` are not all padding.

    ``correction`` adds truncated importance weights, one per token.
    """
    live = draw(st.lists(st.integers(1, 9), min_size=min_live, max_size=4))
    lengths = draw(st.permutations(live + [0] * draw(st.integers(0 if live else 1, 2))))
    data = random_fields([*lengths], draw(st.integers(0, 2**32 - 1)))
    return data | {"rollout_weights": data["old_entropy"].clamp(max=1.0)} if correction else data


class Result(NamedTuple):
    """A loss, its gradients by log-probabilities, by entropies and by what heads predict, and the metrics."""

    loss: Tensor
    gradient: Tensor
    entropy_gradient: Tensor
    future_gradient: Tensor
    metrics: dict[str, float]


def evaluate(chosen: Method, given: Fields, micro_batches: Sequence[Sequence[int]] | None = None) -> Result:
    """The method on the batch: in one piece, or in micro-batches of these rows, whose losses are added."""
    inputs = {name: given[name].detach().clone().requires_grad_() for name in WITH_GRADIENT}
    step = TokenBatch(**{**given, **inputs})
    if micro_batches is None:
        loss, metrics = (out := chosen.loss(step)).loss, out.metrics
    else:
        parts = [chosen.loss(step.rows(torch.tensor(rows))) for rows in micro_batches]
        loss = torch.stack([part.loss for part in parts]).sum()
        metrics = merge_metrics([part.metrics for part in parts])
    gradients = torch.autograd.grad(loss, [*inputs.values()], allow_unused=True, materialize_grads=True)
    return Result(loss.detach(), *gradients, metrics)


def assert_same(one: Result, other: Result, tolerance: float = 1e-10) -> None:
    """Same loss and gradients."""
    for name in ("loss", "gradient", "entropy_gradient", "future_gradient"):
        torch.testing.assert_close(
            getattr(one, name), getattr(other, name), rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def tensor(*rows: Sequence[float]) -> Tensor:
    """A float64 tensor of these rows."""
    return torch.tensor(rows, dtype=torch.float64)


def by_hand(
    log_ratio: Sequence[Sequence[float]], advantages: Sequence[Any], mask: Any = None, **more: Any
) -> TokenBatch:
    """A batch of these log-ratios, from an old policy that gave every token log-probability −1."""
    old = torch.full_like(tensor(*log_ratio), -1.0)
    kept = torch.ones_like(old) if mask is None else torch.tensor(mask)
    return TokenBatch(old + tensor(*log_ratio), old, tensor(*advantages), kept, **more)


def close(x: Tensor, expected: Any) -> None:
    """Equal but for the rounding of float64."""
    torch.testing.assert_close(x, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14)


# ---- a step of 4 or 16 responses of different lengths, and what a method computes of all of it -----------------------

FOUR = [7, 3, 9, 5]
SIXTEEN = [12, 5, 9, 1, 7, 3, 12, 8, 2, 11, 4, 6, 10, 1, 9, 5]


def loss_and_gradient(objective: Method | str, fields: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Loss and its gradient by the log-probabilities, of a preset or a method."""
    chosen = method(objective) if isinstance(objective, str) else objective
    log_probs = fields["log_probs"].clone().requires_grad_()
    loss = chosen.loss(TokenBatch(**fields | {"log_probs": log_probs})).loss
    return loss.detach(), torch.autograd.grad(loss, log_probs)[0]
