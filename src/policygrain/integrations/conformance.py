"""A loss function compared with a preset: value and gradient on generated batches (docs/conformance.md)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..objective import Method, method
from ..objective.batch import TokenBatch
from .generated import Fields, batches

WITH_GRADIENT = ("log_probs", "entropy", "future_log_probs")
# Names of the same tensors in loss functions of trainers.
NAMES = {
    "log_probs": ("log_prob", "logprobs", "logprob", "per_token_logps"),
    "old_log_probs": ("old_log_prob", "old_logprobs", "old_logprob", "old_per_token_logps"),
    "mask": ("response_mask", "completion_mask", "action_mask", "loss_mask"),
    "ref_log_probs": ("ref_log_prob", "ref_logprobs", "ref_per_token_logps"),
}
ALIASES = {alias: name for name, aliases in NAMES.items() for alias in aliases}
# Fields that the preset gets only if the loss function takes them, or if it cannot do without.
OPTIONAL = ("entropy", "old_entropy", "max_length", "rollout_log_probs", "rollout_weights")
SHOWN = 3  # batches in a message
LossFunction = Callable[..., Any]
Outcome = tuple[float, dict[str, Tensor]]  # a loss and its gradients, 0 where it has none


@dataclass(frozen=True)
class Comparison:
    """Comparison of a loss with an objective, over all batches."""

    objective: str
    problems: tuple[str, ...]  # a sentence per batch in which they differ; empty: it is the objective
    cosine: float  # of the gradients of all batches
    norm: float  # of the loss's gradient, over that of the objective
    expected: str  # the parts of the objective
    n_batches: int

    @property
    def text(self) -> str:
        """The differences as a message."""
        lines = [f"it is not {self.objective}: it differs in {len(self.problems)} of {self.n_batches} batches, such as"]
        lines += self.problems[:SHOWN]
        lines.append(
            f"Its gradient has cosine {self.cosine:.4f} with the preset's, and {self.norm:.4g} times its norm."
        )
        return "\n  ".join([*lines, self.expected])


def assert_objective(loss_function: LossFunction, objective: str | Method, **options: Any) -> Comparison:
    """AssertionError unless a loss function has the value and gradient of a preset; ``options`` as in `compare`."""
    __tracebackhide__ = True  # pytest shows the message without this function's text
    compared = compare(loss_function, objective, **options)
    if compared.problems:
        raise AssertionError(compared.text)
    return compared


def compare(
    loss_function: LossFunction,
    objective: str | Method,
    given: Mapping[str, Fields] | None = None,
    *,
    without: Collection[str] = (),
    value: bool = True,
    rtol: float = 1e-5,
    per_token_advantages: bool = False,
) -> Comparison:
    """Compare value and gradient of a loss function with those of a preset.

    ``loss_function`` is called with the tensors that its parameters name: `log_probs`, `old_log_probs`, `advantages`,
    `mask` and the other fields of a TokenBatch, or the names of TRL and verl (`NAMES`). It returns a scalar, or a tuple
    that begins with one. Entropies and `max_length` are given to the preset only where the function takes them, too.

    ``given``: batches by name (default: `generated.batches`); ``without``: names of batches to leave out. ``value``
    False: the gradient alone. ``rtol``: relative to the largest gradient of the batch. ``per_token_advantages``:
    advantages are [batch, tokens] instead of [batch].
    """
    chosen = method(objective) if isinstance(objective, str) else objective
    made = batches(chosen) if given is None else given
    if unknown := set(without) - set(made):
        raise UserError(f"without: there is no batch {', '.join(sorted(unknown))}. There are: {', '.join(made)}.")
    arguments, problems, gradients = _arguments(loss_function), list[str](), list[tuple[Tensor, Tensor]]()
    taken = {*arguments.values(), "rollout_log_probs" if chosen.anchor != "old" else ""}
    taken |= {"entropy"} if "entropy_gradient" in chosen.needs else set()
    used = {name: fields for name, fields in made.items() if name not in without}
    if per_token_advantages:
        used = {n: f | {"advantages": f["advantages"][:, None].expand(f["mask"].shape)} for n, f in used.items()}
    for name, fields in used.items():
        known = {key: tensor for key, tensor in fields.items() if key not in OPTIONAL or key in taken}
        theirs, ours = _outcome(loss_function, known, arguments, name), outcome_of(chosen, known)
        problems += difference(theirs, ours, chosen.name, name, rtol, value)
        gradients += zip(theirs[1].values(), ours[1].values(), strict=True)
    flat = [torch.cat([gradient.flatten() for gradient in side]) for side in zip(*gradients, strict=True)]
    return Comparison(chosen.name, tuple(problems), *alike(*flat), expectation(chosen), len(used))


def alike(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The cosine of two gradients, and the norm of the first over that of the second."""
    cosine = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
    return cosine, float(one.norm() / other.norm().clamp(min=1e-300))


def expectation(objective: Method) -> str:
    """The parts of the objective with their parameters, as a sentence; losses do not compute advantages."""
    parts = []
    for key, part in objective.parts().items():
        if key != "advantage":
            settings = ", ".join(f"{name} {value}" for name, value in part.settings.items() if value is not None)
            parts.append(f"{key} {part.name}" + (f" ({settings})" if settings else ""))
    return f"{objective.name} is: {'; '.join(parts)}."


def _arguments(loss_function: LossFunction) -> dict[str, str]:
    """Parameter → field; `**fields` are all fields without a parameter. UserError for an unknown parameter."""
    fields = {*TokenBatch.__dataclass_fields__} - {"step"}
    arguments: dict[str, str] = {}
    for parameter in inspect.signature(loss_function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= {name: name for name in fields.difference(arguments.values())}
            continue
        name = ALIASES.get(parameter.name, parameter.name)
        if name in fields:
            arguments[parameter.name] = name
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise UserError(
                f"the loss function's parameter {parameter.name!r} is none of {', '.join(sorted(fields))}, nor of "
                f"{', '.join(ALIASES)}. Wrap the function in one with such names."
            )
    if "log_probs" not in arguments.values():
        raise UserError("the loss function has no parameter `log_probs`, which its gradient is taken by.")
    return arguments


def _outcome(function: LossFunction, fields: Fields, arguments: Mapping[str, str], batch: str) -> Outcome:
    leaves = {key: fields[key].detach().clone().requires_grad_() for key in WITH_GRADIENT if key in fields}
    all_fields = fields | leaves
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)  # methods that draw tokens draw the same ones
        returned = function(**{p: all_fields[name] for p, name in arguments.items() if name in all_fields})
    loss = returned[0] if isinstance(returned, tuple) else getattr(returned, "loss", returned)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise AssertionError(f"batch {batch!r}: a loss is a scalar tensor, and this is {shape}.")
    if not loss.requires_grad:
        raise AssertionError(f"batch {batch!r}: the loss has no gradient by log_probs. Is the ratio detached?")
    gradients = torch.autograd.grad(loss.sum(), [*leaves.values()], allow_unused=True, materialize_grads=True)
    return float(loss.detach()), dict(zip(leaves, gradients, strict=True))


def outcome_of(chosen: Method, fields: Fields) -> Outcome:
    """The loss of an objective on a batch, and its gradients."""
    named = {name: name for name in fields}
    return _outcome(lambda **all_fields: chosen.loss(TokenBatch(**all_fields)), fields, named, chosen.name)


def difference(theirs: Outcome, ours: Outcome, name: str, batch: str, rtol: float, value: bool) -> list[str]:
    """What differs in a batch, at most one sentence: the first token with another gradient, and the values."""
    values = f"the value is {theirs[0]:.6g}, that of {name} is {ours[0]:.6g}"
    scale = max(float(gradient.abs().max()) for gradient in ours[1].values())
    for by, expected in ours[1].items():
        actual = theirs[1][by]
        wrong = ~((actual - expected).abs() <= rtol * scale + 1e-12)  # NaN is wrong, too
        if wrong.any():
            row, token = wrong.nonzero()[0].tolist()
            return [
                f"batch {batch!r}: response {row + 1}, token {token + 1}: the gradient by {by} is "
                f"{float(actual[row, token]):.4g}, that of {name} is {float(expected[row, token]):.4g}; {values}."
            ]
    if value and not abs(theirs[0] - ours[0]) <= rtol * max(abs(ours[0]), scale) + 1e-12:
        return [f"batch {batch!r}: the gradient is the same, but {values} (`value=False` compares gradients alone)."]
    return []
