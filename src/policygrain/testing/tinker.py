"""A Tinker-compatible endpoint compared with a preset: a step with its loss, and one with the preset's custom loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..integrations.tinker import loss_function, tensor_of
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
    returned. The endpoint must have `cross_entropy`, with whose weights the preset's gradient is sent, as by the SDK's
    custom losses, and accept `AdamParams` with a large `eps`.
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
            rows = [row.requires_grad_() for row in _rows(client, data)]
            loss, _ = loss_function(chosen)(data, rows)
            gradients = torch.autograd.grad(loss, rows)
            client.forward_backward(_linear(data, [-row for row in gradients]), "cross_entropy").result()
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


def _linear(data: Sequence[Any], weights: Sequence[Tensor]) -> list[Any]:
    """The data for `cross_entropy`, whose loss is −Σ weight · log-probability."""
    from tinker import Datum, TensorData

    inputs = [
        {"target_tokens": datum.loss_fn_inputs["target_tokens"], "weights": TensorData.from_torch(row.float())}
        for datum, row in zip(data, weights, strict=True)
    ]
    return [Datum(model_input=d.model_input, loss_fn_inputs=one) for d, one in zip(data, inputs, strict=True)]


def _rows(client: Any, data: Sequence[Any]) -> list[Tensor]:
    """Log-probabilities of the data's target tokens under the client's model. [tokens] each."""
    weights = [torch.zeros(len(tensor_of(datum.loss_fn_inputs["target_tokens"]))) for datum in data]
    outputs = client.forward(_linear(data, weights), "cross_entropy").result().loss_fn_outputs
    return [torch.as_tensor(output["logprobs"].data) for output in outputs]


def _log_probs(client: Any, data: Sequence[Any]) -> Tensor:
    """Log-probabilities of the tokens that the mask has."""
    return torch.cat(
        [row[tensor_of(d.loss_fn_inputs["mask"]) != 0] for row, d in zip(_rows(client, data), data, strict=True)]
    )


def _check_off_policy(data: Sequence[Any], now: Tensor) -> None:
    old = torch.cat(
        [tensor_of(datum.loss_fn_inputs["logprobs"])[tensor_of(datum.loss_fn_inputs["mask"]) != 0] for datum in data]
    )
    if float((now - old).abs().max()) <= RATIOS_ARE_1:
        raise UserError("the data's `logprobs` are those of the model, so all ratios are 1: change them by some noise.")
