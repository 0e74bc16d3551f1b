"""A loss function compared with a preset: value and gradient on generated batches; if they differ, its objective."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..errors import UserError
from ..objective import Method, Need, method, method_names
from ..objective.aggregate import Aggregation
from ..objective.batch import TokenBatch
from ..objective.clip import ClipRange, NoClip, PpoClip
from ..objective.ratio import NoRatio, Ratio, SequenceRatio, TokenRatio
from .generated import Fields, batches

WITH_GRADIENT = ("log_probs", "entropy", "future_log_probs")
# Names of the same tensors in loss functions of trainers.
ALIASES = {
    "log_prob": "log_probs",
    "logprobs": "log_probs",
    "logprob": "log_probs",
    "per_token_logps": "log_probs",
    "old_log_prob": "old_log_probs",
    "old_logprobs": "old_log_probs",
    "old_logprob": "old_log_probs",
    "old_per_token_logps": "old_log_probs",
    "response_mask": "mask",
    "completion_mask": "mask",
    "action_mask": "mask",
    "loss_mask": "mask",
    "ref_log_prob": "ref_log_probs",
    "ref_logprobs": "ref_log_probs",
    "ref_per_token_logps": "ref_log_probs",
}
# Fields that the preset gets only if the loss function takes them, or if the preset has the need in NEEDED.
OPTIONAL = ("entropy", "old_entropy", "max_length", "rollout_log_probs", "rollout_weights")
NEEDED: dict[str, Need] = {"entropy": "entropy_gradient"}
SHOWN = 3  # batches in a message
LossFunction = Callable[..., Any]


class Outcome(NamedTuple):
    """A loss and its gradients, 0 where it has none; the first is by ``log_probs``."""

    value: float
    gradients: dict[str, Tensor]

    @property
    def flat(self) -> Tensor:
        """All gradients in one vector."""
        return torch.cat([gradient.flatten() for gradient in self.gradients.values()])


class Differs(AssertionError):
    """A loss that is not the objective; ``comparison`` has the numbers."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison.text)
        self.comparison = comparison


@dataclass(frozen=True)
class Comparison:
    """Comparison of a loss with an objective, over all batches."""

    objective: str
    problems: tuple[str, ...]  # a sentence per batch in which they differ; empty: it is the objective
    cosine: float  # of the gradients of all batches
    norm: float  # of the loss's gradient, over that of the objective
    equals: str | None  # the method with the same gradient, in words; None: no known one
    n_batches: int

    @property
    def text(self) -> str:
        """The comparison as a message."""
        if not self.problems:
            return f"it is {self.objective}: the same in {self.n_batches} batches."
        rest = len(self.problems) - SHOWN
        return "\n".join(
            [
                f"it is not {self.objective}: it differs in {len(self.problems)} of {self.n_batches} batches.",
                *(f"  {problem}" for problem in self.problems[:SHOWN]),
                *([f"  … and {rest} more"] if rest > 0 else []),
                f"  Over all batches its gradient has cosine {self.cosine:.4f} with that of {self.objective} and "
                f"{self.norm:.4g} times its norm.",
                f"  Its gradient is that of: {self.equals}."
                if self.equals
                else "  No other preset has its gradient, nor this one with another clip, ratio or aggregation.",
            ]
        )


def assert_objective(
    loss_function: LossFunction,
    objective: str | Method,
    *,
    without: Collection[str] = (),
    value: bool = True,
    rtol: float = 1e-5,
    per_token_advantages: bool = False,
) -> Comparison:
    """Differs (an AssertionError) unless a loss function has the value and gradient of a preset on all batches.

    ``loss_function`` is called with the tensors that its parameters name: `log_probs`, `old_log_probs`, `advantages`,
    `mask` and the other fields of a TokenBatch, or the names of TRL and verl (`ALIASES`). It returns a scalar, or a
    tuple that begins with one. Entropies and `max_length` are given to the preset only where the function takes them,
    too.

    ``without``: batches to leave out, by their names. ``value`` False: the gradient alone. ``rtol``: relative to the
    largest gradient of the batch. ``per_token_advantages``: advantages are [batch, tokens] instead of [batch].
    """
    __tracebackhide__ = True  # pytest shows the message without this function's text
    chosen = method(objective) if isinstance(objective, str) else objective
    made = batches(chosen)
    if unknown := set(without) - set(made):
        raise UserError(f"without: there is no batch {', '.join(sorted(unknown))}. There are: {', '.join(made)}.")
    if per_token_advantages:
        made = {n: f | {"advantages": f["advantages"][:, None].expand(f["mask"].shape)} for n, f in made.items()}
    left = {name: fields for name, fields in made.items() if name not in without}
    compared = compare(loss_function, chosen, left, value=value, rtol=rtol)
    if compared.problems:
        raise Differs(compared)
    return compared


def compare(
    loss_function: LossFunction,
    objective: str | Method,
    given: Mapping[str, Fields] | None = None,
    *,
    value: bool = True,
    rtol: float = 1e-5,
    others: Mapping[str, Method] | None = None,
) -> Comparison:
    """Like `assert_objective`, without raising. ``given``: batches (default: all); ``others``: more candidates."""
    chosen = method(objective) if isinstance(objective, str) else objective
    fields_of = batches(chosen) if given is None else given
    arguments = _arguments(loss_function)
    known = {name: _known(fields, chosen, arguments) for name, fields in fields_of.items()}
    theirs = {name: _outcome(loss_function, fields, arguments, name) for name, fields in known.items()}
    ours = {name: _of_method(chosen, fields) for name, fields in known.items()}
    problems = [
        problem
        for name in fields_of
        if (problem := _difference(theirs[name], ours[name], chosen.name, name, rtol, value)) is not None
    ]
    flat = [torch.cat([outcome.flat for outcome in side.values()]) for side in (theirs, ours)]
    cosine, norm = alike(*flat)
    equals = None
    if problems or others is not None:

        def has_gradient(other: Method) -> bool:
            return all(
                _difference(theirs[name], _of_method(other, fields), other.name, name, rtol, False) is None
                for name, fields in known.items()
            )

        equals = equal_variant(chosen, has_gradient, {chosen.name: chosen, **(others or {})})
    return Comparison(chosen.name, tuple(problems), cosine, norm, equals, len(fields_of))


def alike(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The cosine of two gradients, and the norm of the first over that of the second."""
    cosine = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
    return cosine, float(one.norm() / other.norm().clamp(min=1e-300))


def equal_variant(
    objective: Method, is_equal: Callable[[Method], bool], first: Mapping[str, Method] = MappingProxyType({})
) -> str | None:
    """The first equal method, in words, among ``first`` and the variants of the objective; None if none is equal."""
    for words, other in (*first.items(), *variants(objective)):
        try:
            if is_equal(other):
                return words
        except ValueError:  # the batch lacks a field that this method reads
            continue
    return None


def variants(objective: Method) -> Iterator[tuple[str, Method]]:
    """Candidates for a differing loss, by description: one or two parts changed, or another preset."""
    clips: dict[str, Any] = {"no clip": NoClip()}
    if isinstance(objective.clip, ClipRange):
        low, high = objective.clip.low, objective.clip.high
        clips["low and high exchanged"] = replace(objective.clip, low=min(high, 1.0), high=low)
        clips = {f"the range {s:g} / {b:g}": PpoClip(low=s, high=b) for s, b in ((0.2, 0.2), (0.2, 0.28))} | clips
    ratios = (NoRatio(), TokenRatio(), SequenceRatio(), SequenceRatio(stop_gradient=True))
    changes: dict[str, dict[str, Any]] = {
        "aggregation": {f"`{name}`": cast(Any, kind)() for name, kind in Aggregation.choices.items()},
        "clip": clips,
        "ratio": {f"the ratio `{ratio.label}`": ratio for ratio in cast("tuple[Ratio, ...]", ratios)},
        "penalties": {"no penalty": ()},
    }
    single = [
        (key, words, part)
        for key, parts in changes.items()
        for words, part in parts.items()
        if part != getattr(objective, key)
    ]
    for count in (1, 2):
        for chosen in combinations(single, count):
            if len({key for key, _, _ in chosen}) == count:
                words = " and ".join(words for _, words, _ in chosen)
                yield f"`{objective.name}` with {words}", replace(objective, **{key: part for key, _, part in chosen})
    yield from ((f"`{name}` as published", method(name)) for name in method_names())


# ---- one batch ------------------------------------------------------------------------------------------------------


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


def _known(fields: Fields, chosen: Method, arguments: Mapping[str, str]) -> Fields:
    """The fields that the preset is given."""
    taken = {*arguments.values()} | {name for name, need in NEEDED.items() if need in chosen.needs}
    taken |= {"rollout_log_probs"} if chosen.anchor != "old" else set()
    return {name: tensor for name, tensor in fields.items() if name not in OPTIONAL or name in taken}


def _outcome(function: LossFunction, fields: Fields, arguments: Mapping[str, str], batch: str) -> Outcome:
    leaves = {key: fields[key].detach().clone().requires_grad_() for key in WITH_GRADIENT if key in fields}
    all_fields = fields | leaves
    kwargs = {p: all_fields[n] for p, n in arguments.items() if n in all_fields}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(0)  # methods that draw tokens draw the same ones
        returned = function(**kwargs)
    loss = returned[0] if isinstance(returned, tuple) else getattr(returned, "loss", returned)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise AssertionError(f"batch {batch!r}: a loss is a scalar tensor, and this is {shape}.")
    if not loss.requires_grad:
        raise AssertionError(f"batch {batch!r}: the loss has no gradient by log_probs. Is the ratio detached?")
    inputs = [*leaves.values()]
    gradients = torch.autograd.grad(loss.sum(), inputs, allow_unused=True, materialize_grads=True)
    return Outcome(float(loss.detach()), dict(zip(leaves, gradients, strict=True)))


def _of_method(chosen: Method, fields: Fields) -> Outcome:
    named = {name: name for name in fields}
    return _outcome(lambda **all_fields: chosen.loss(TokenBatch(**all_fields)), fields, named, chosen.name)


def _difference(theirs: Outcome, ours: Outcome, name: str, batch: str, rtol: float, value: bool) -> str | None:
    """The token where the gradients differ most, or the values; None if they are equal."""
    scale = max((float(gradient.abs().max()) for gradient in ours.gradients.values()), default=0.0)
    for by, expected in ours.gradients.items():
        actual = theirs.gradients[by]
        if not bool(actual.isfinite().all()):
            place = (~actual.isfinite()).nonzero()[0].tolist()
            return f"batch {batch!r}: the gradient is not finite at response {place[0] + 1}, token {place[1] + 1}."
        distance = (actual - expected).abs()
        if float(distance.max()) > rtol * scale + 1e-12:
            row, token = divmod(int(distance.argmax()), distance.shape[1])
            return (
                f"batch {batch!r}: response {row + 1}, token {token + 1}: the gradient by {by} is "
                f"{float(actual[row, token]):.4g}, that of {name} is {float(expected[row, token]):.4g}."
            )
    if value and not abs(theirs.value - ours.value) <= rtol * max(abs(ours.value), scale) + 1e-12:
        return (
            f"batch {batch!r}: the gradient is the same, but the value is {theirs.value:.6g}, that of {name} is "
            f"{ours.value:.6g} (`value=False` compares gradients alone)."
        )
    return None
