"""Tinker: a loss function for `TrainingClient.forward_backward_custom` (docs/your-trainer.md).

It runs on the client over the whole batch of an optimizer step, so every statistic is that of the step. Nothing of
Tinker is imported: a datum is any object with `loss_fn_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..objective import Method
from ..objective.batch import TokenBatch
from .options import UnsupportedOption, chosen, refuse, warn_sampler

LossFunction = Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]


def loss_function(objective: str | Method = "tepo", *, max_length: int | None = None) -> LossFunction:
    """The method as Tinker's `loss_fn(data, logprobs)`: a scalar loss with gradient, and metrics.

    Each datum's `loss_fn_inputs` need `logprobs`, `advantages` and `mask`, and some methods `staleness`, all as long as
    `target_tokens`. ``max_length``: L_max of methods that divide by it. UnsupportedOption for methods that need what
    Tinker's server does not send.
    """
    resolved = chosen(objective)
    refuse(resolved, "Tinker", ("reference", "entropy_gradient", "mtp_heads", "groups"), max_length=max_length)
    warn_sampler(resolved)

    def loss(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        fields = {}
        for name in ("logprobs", "advantages", "mask", *({"staleness"} & resolved.needs)):
            rows = [_field(datum, i, name, len(logprobs[i])) for i, datum in enumerate(data)]
            fields[name] = pad_sequence(rows, batch_first=True)
        batch = TokenBatch(
            pad_sequence([*logprobs], batch_first=True),
            fields["logprobs"],
            fields["advantages"],
            fields["mask"],
            staleness=fields.get("staleness"),
            rollout_log_probs=fields["logprobs"],
            max_length=max_length,
        )
        out = resolved.loss(batch)
        return out.loss, {f"policygrain/{name}": value for name, value in out.metrics.items()}

    return loss


def _field(datum: Any, number: int, name: str, length: int) -> Tensor:
    inputs = datum.loss_fn_inputs
    if name not in inputs:
        raise UnsupportedOption(
            f"datum {number}: loss_fn_inputs has no {name!r}; it has {', '.join(map(repr, inputs))}."
        )
    tensor = tensor_of(inputs[name])
    if tensor.shape != (length,):
        raise UnsupportedOption(f"datum {number}: {name} has shape {tuple(tensor.shape)}, target_tokens {length}.")
    return tensor


def tensor_of(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(getattr(value, "data", value))
