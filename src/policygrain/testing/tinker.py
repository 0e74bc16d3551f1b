"""A Tinker-compatible endpoint beside a preset: a step with its loss, and one with the preset's custom loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..integrations.tinker import loss_function
from ..objective import Method, method
from .losses import alike
from .weights import RATIOS_ARE_1

EPS = 1e3  # far above any gradient: Adam's step is then learning_rate / EPS · gradient


def assert_tinker(
    make_client: Callable[[], Any],
    data: Sequence[Any],
    loss_fn: str,
    objective: str | Method,
    *,
    loss_fn_config: dict[str, float] | None = None,
    learning_rate: float = 1e-2,
    rtol: float = 2e-2,
) -> float:
    """AssertionError unless a step with the endpoint's `loss_fn` moves the model as one with the preset's loss does.

    ``make_client`` returns a new TrainingClient with the same weights each time. ``data``: as for
    `integrations.tinker.loss_function`, with `logprobs` that are not those of the model, or all ratios are 1. What is
    compared is the change of the data's log-probabilities, up to a factor, since Tinker's losses are sums; it is
    returned. The endpoint must accept `AdamParams` with a large `eps`.
    """
    from tinker import AdamParams

    chosen = method(objective) if isinstance(objective, str) else objective
    adam = AdamParams(learning_rate=learning_rate * EPS, beta1=0.0, beta2=0.0, eps=EPS)
    changes: list[Tensor] = []
    for use_endpoints_loss in (True, False):
        client = make_client()
        before = _log_probs(client, data)
        if not changes:
            _check_off_policy(data, before)
        if use_endpoints_loss:
            client.forward_backward(list(data), loss_fn, loss_fn_config).result()
        else:
            client.forward_backward_custom(list(data), loss_function(chosen)).result()
        client.optim_step(adam).result()
        changes.append(_log_probs(client, data) - before)
    if not all(float(change.norm()) > 0 for change in changes):
        raise AssertionError(f"{loss_fn}: a step with {'it' if not changes[0].any() else chosen.name} changes nothing.")
    cosine, factor = alike(*changes)
    if float((changes[0] - factor * changes[1]).norm()) > rtol * float(changes[0].norm()):
        raise AssertionError(
            f"the endpoint's {loss_fn!r} is not {chosen.name}: what a step changes has cosine {cosine:.4f} with what a "
            f"step of {chosen.name} changes."
        )
    return factor


def _log_probs(client: Any, data: Sequence[Any]) -> Tensor:
    """Log-probabilities of the tokens that the mask has, under the client's model; by a loss without gradient."""
    seen: list[Tensor] = []

    def probe(_: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        seen[:] = [row.detach().clone() for row in logprobs]
        return torch.stack([row.sum() for row in logprobs]).sum() * 0.0, {}

    client.forward_backward_custom(list(data), probe).result()
    return torch.cat([row[_tensor(datum, "mask") != 0] for row, datum in zip(seen, data, strict=True)])


def _check_off_policy(data: Sequence[Any], now: Tensor) -> None:
    old = torch.cat([_tensor(datum, "logprobs")[_tensor(datum, "mask") != 0] for datum in data])
    if float((now - old).abs().max()) <= RATIOS_ARE_1:
        raise UserError("the data's `logprobs` are those of the model, so all ratios are 1: change them by some noise.")


def _tensor(datum: Any, name: str) -> Tensor:
    value = datum.loss_fn_inputs[name]
    return value if isinstance(value, Tensor) else torch.as_tensor(getattr(value, "data", value))
