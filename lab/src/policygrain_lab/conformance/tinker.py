"""A Tinker-compatible endpoint compared with a preset: a step with its loss, and one with the preset's gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from policygrain.errors import UserError
from policygrain.integrations.conformance import alike
from policygrain.integrations.tinker import loss_function, tensor_of
from policygrain.objective import Method, method

from .trainer import RATIOS_ARE_1

EPS = 1e3  # far above any gradient: Adam's step is then learning rate / EPS · gradient
Carrier = Literal["cross_entropy", "importance_sampling"]


def assert_tinker(
    make_client: Callable[[], Any],
    data: Sequence[Any],
    loss_fn: str,
    objective: str | Method,
    *,
    loss_fn_config: dict[str, float] | None = None,
    carrier: Carrier = "cross_entropy",
    step: float = 3e-3,
    rtol: float = 2e-2,
) -> float:
    """AssertionError unless a step with the endpoint's `loss_fn` moves the model as one with the preset's loss does.

    ``make_client`` returns a new TrainingClient with the same weights each time. ``data``: as for
    `integrations.tinker.loss_function`; their `logprobs` must differ from the model's, or all ratios are 1. The
    endpoint gets their `target_tokens`, `logprobs`, `advantages`, set to 0 where the mask is 0, and `weights` if they
    have them. The changes of the data's log-probabilities are compared up to a factor, because Tinker's losses are
    sums. Returns the factor. The endpoint must accept `AdamParams` with a large `eps`. UserError if all ratios are 1.

    ``carrier``: the endpoint's loss that applies the preset's gradient. `cross_entropy` gets the gradient as weights,
    as in the SDK's custom losses; `importance_sampling` as advantages at ratios of 1, with one datum for each token,
    whose `weights` are 1 at this token and 0 elsewhere. AssertionError if the carrier is not a sum over tokens.
    ``step``: size of a step, as the largest change of a log-probability; half precision needs a larger one, and a
    larger ``rtol``. ``rtol``: largest distance of the two changes, relative to the norm of the endpoint's.
    """
    from tinker import AdamParams

    chosen = method(objective) if isinstance(objective, str) else objective
    masks = [tensor_of(datum.loss_fn_inputs["mask"]) != 0 for datum in data]
    now = _log_probs(make_client(), data)
    _check_off_policy(data, masks, now)

    def slope(sent: list[Any], loss: str, config: dict[str, float] | None = None) -> Tensor:
        """Change of the log-probabilities of the tokens in the mask, divided by the learning rate."""
        rate = step
        for _ in range(3):  # until the size of a step is about ``step``
            client = make_client()
            client.forward_backward(sent, loss, config).result()
            client.optim_step(AdamParams(learning_rate=rate * EPS, beta1=0.0, beta2=0.0, eps=EPS)).result()
            moved = torch.cat([(a - b)[m] for a, b, m in zip(_log_probs(client, data), now, masks, strict=True)])
            change, size = moved / rate, float(moved.abs().max())
            if not size > 0 or step / 2 < size < 2 * step:
                break
            rate *= step / size
        return change

    rows = [row.clone().requires_grad_() for row in now]
    loss, _ = loss_function(chosen, max_length=max(map(len, rows)))(data, rows)
    weights = [-row for row in torch.autograd.grad(loss, rows)]
    send = _as_weights if carrier == "cross_entropy" else _as_advantages
    # Half of each datum's gradient, and −½ of it with data that end there: a sum moves the model −½ as far.
    ends = [int((row != 0).cumsum(0).lt((row != 0).sum() / 2).sum()) + 1 for row in weights]
    half = [row * (torch.arange(len(row)) < end) for row, end in zip(weights, ends, strict=True)]
    whole = slope(send(data, now, half), carrier)
    ended = slope(
        send([_until(*pair) for pair in zip(data, ends, strict=True)], now, [-row / 2 for row in half]), carrier
    )
    if not float((ended + whole / 2).norm()) <= rtol * float(whole.norm()) / 2:
        raise AssertionError(
            f"the endpoint's {carrier!r} is not a sum of weight · log-probability over tokens: with data cut in half "
            f"and weights times −½ a step has cosine {alike(ended, -whole)[0]:.4f} with the expected one and "
            f"{2 * alike(ended, whole)[1]:.4g} times its norm."
            + (" A custom loss of the SDK is another loss there." if carrier == "cross_entropy" else "")
        )
    own, preset = slope(_without_mask(data, masks), loss_fn, loss_fn_config), slope(send(data, now, weights), carrier)
    if not all(float(moved.norm()) > 0 for moved in (own, preset)):
        raise AssertionError(f"{loss_fn}: a step with {chosen.name if own.any() else 'it'} changes nothing.")
    cosine, factor = alike(own, preset)
    if not float((own - factor * preset).norm()) <= rtol * float(own.norm()):
        raise AssertionError(
            f"the endpoint's {loss_fn!r} is not {chosen.name}: the changes of log-probabilities by a step of each have "
            f"cosine {cosine:.4f}."
        )
    return factor


def _datum(datum: Any, **inputs: Tensor) -> Any:
    """A datum with these inputs beside its `target_tokens`."""
    from tinker import Datum, TensorData

    tensors = {name: TensorData.from_torch(row.float()) for name, row in inputs.items()}
    return Datum(
        model_input=datum.model_input,
        loss_fn_inputs={"target_tokens": datum.loss_fn_inputs["target_tokens"], **tensors},
    )


def _as_weights(data: Sequence[Any], _: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Any]:
    """The data for `cross_entropy`, whose loss is −Σ weight · log-probability."""
    return [_datum(datum, weights=row[: _length(datum)]) for datum, row in zip(data, weights, strict=True)]


def _as_advantages(data: Sequence[Any], now: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Any]:
    """The data for `importance_sampling`, one for each token whose weight is not 0."""
    sent = []
    for datum, log_probs, row in zip(data, now, weights, strict=True):
        length = _length(datum)
        for one in torch.eye(length)[row[:length] != 0]:
            sent.append(_datum(datum, logprobs=log_probs[:length], advantages=row[:length] * one, weights=one))
    return sent


def _without_mask(data: Sequence[Any], masks: Sequence[Tensor]) -> list[Any]:
    """The data for the endpoint's own loss, which has no mask: advantages are 0 outside the mask."""
    sent = []
    for datum, mask in zip(data, masks, strict=True):
        names = [name for name in ("logprobs", "advantages", "weights") if name in datum.loss_fn_inputs]
        inputs = {name: tensor_of(datum.loss_fn_inputs[name]) for name in names}
        sent.append(_datum(datum, **inputs | {"advantages": inputs["advantages"] * mask}))
    return sent


def _until(datum: Any, end: int) -> Any:
    """A datum without the tokens after ``end``."""
    from tinker import Datum, ModelInput, TensorData

    targets = TensorData.from_torch(tensor_of(datum.loss_fn_inputs["target_tokens"])[:end])
    return Datum(
        model_input=ModelInput.from_ints(datum.model_input.to_ints()[:end]), loss_fn_inputs={"target_tokens": targets}
    )


def _length(datum: Any) -> int:
    return len(tensor_of(datum.loss_fn_inputs["target_tokens"]))


def _log_probs(client: Any, data: Sequence[Any]) -> list[Tensor]:
    """Log-probabilities of the data's target tokens under the client's model. [tokens] each."""
    sent = [_datum(datum, weights=torch.zeros(_length(datum))) for datum in data]
    outputs = client.forward(sent, "cross_entropy").result().loss_fn_outputs
    return [torch.as_tensor(output["logprobs"].data) for output in outputs]


def _check_off_policy(data: Sequence[Any], masks: Sequence[Tensor], now: Sequence[Tensor]) -> None:
    old = [tensor_of(datum.loss_fn_inputs["logprobs"]) for datum in data]
    log_ratios = torch.cat([(a - b)[m] for a, b, m in zip(now, old, masks, strict=True)])
    if float(log_ratios.abs().max()) <= RATIOS_ARE_1:
        raise UserError("the data's `logprobs` are those of the model, so all ratios are 1: change them by some noise.")
