"""Runs a method with custom functions on a small example, before training."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch

from ..errors import UserError, did_you_mean
from .batch import TokenBatch
from .part import Custom

if TYPE_CHECKING:
    from .method import Method


def check(method: Method) -> None:
    """Run a method on a small example with the tensors that its parts need and no others. UserError names the key."""
    where = f"methods.{method.name}"
    for key, part in method.parts().items():
        if isinstance(part, Custom):
            _check_parameters(part, f"{where}.{key}")
    batch = _example(method)
    assert batch.entropy is not None
    try:
        with torch.random.fork_rng(devices=[]):
            out = method.loss(batch.replace(step=method.step_of(batch)))
        method.advantage(torch.zeros(2, 2))
        gradients = torch.autograd.grad(out.loss, [batch.log_probs, batch.entropy], allow_unused=True)
    except Exception as error:  # a custom function may raise anything
        raise UserError(f"{where}: the method does not work on a small example: {error}") from error
    if gradients[1] is not None and gradients[1].any() and "entropy_gradient" not in method.needs:
        raise UserError(
            f"{where}: the loss depends on batch.entropy, which has no gradient in training unless a function declares "
            'it: `@needs("entropy_gradient")`.'
        )


def _check_parameters(part: Custom, where: str) -> None:
    """UserError if a custom function cannot be imported or lacks a parameter that the method gives it."""
    try:
        parameters = inspect.signature(part.function).parameters.values()
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for key in () if any(p.kind is p.VAR_KEYWORD for p in parameters) else part.parameters:
        if key not in known:
            hint = did_you_mean(key, known) if known else " It has no keyword parameters (after a `*`)."
            raise UserError(f"{where}.{key}: {part.name!r} has no parameter {key!r}.{hint}")


def _example(method: Method) -> TokenBatch:
    """Two responses with the tensors that the method needs, so that errors appear before sampling."""
    x = torch.tensor([[-0.5, -1.0, -2.0], [-1.5, -0.1, -0.2]])
    needs = method.needs
    future = x if "mtp_heads" in needs else None
    return TokenBatch(
        log_probs=x.clone().requires_grad_(),
        old_log_probs=x - 0.1,
        advantages=torch.tensor([1.0, -1.0]),
        mask=torch.tensor([[1, 1, 1], [1, 1, 0]]),
        entropy=(-x).requires_grad_(),
        old_entropy=-x,
        ref_log_probs=x - 0.2 if "reference" in needs else None,
        rollout_log_probs=x - 0.1,
        future_log_probs=future,
        old_future_log_probs=future,
        groups=torch.tensor([0, 1]) if "groups" in needs else None,
        staleness=torch.tensor([1, 3]) if "staleness" in needs else None,
    )
