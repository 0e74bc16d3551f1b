"""A loss function compared with a preset: value and gradient on generated batches (docs/conformance.md)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..objective import Method, method
from ..objective.batch import TokenBatch

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
Fields = dict[str, Any]  # the arguments of a TokenBatch
LossFunction = Callable[..., Any]
Outcome = tuple[float, dict[str, Tensor]]  # a loss and its gradients, 0 where it has none


class Comparison(NamedTuple):
    """Comparison of a loss with an objective, over all batches."""

    problems: list[str]  # a sentence per batch in which they differ; empty: it is the objective
    cosine: float  # of the gradients of all batches
    norm: float  # of the loss's gradient, over that of the objective
    text: str  # the differences as a message


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
    """Compare value and gradient of a loss function with those of a preset, as in docs/conformance.md.

    ``given``: batches by name (default: `batches`); ``without``: names of batches to leave out. ``value`` False: the
    gradient alone. ``rtol``: relative to the largest gradient of the batch. ``per_token_advantages``: advantages are
    [batch, tokens] instead of [batch].
    """
    chosen = method(objective) if isinstance(objective, str) else objective
    made = batches(chosen) if given is None else given
    if unknown := set(without) - set(made):
        raise UserError(f"without: there is no batch {', '.join(sorted(unknown))}. There are: {', '.join(made)}.")
    arguments, problems, gradients = _arguments(loss_function), list[str](), list[tuple[Tensor, Tensor]]()
    taken = {*arguments.values(), "rollout_log_probs" if chosen.anchor != "old" else ""}
    taken |= {"entropy"} if "entropy_gradient" in chosen.needs else set()
    used = {name: fields for name, fields in made.items() if name not in without}
    for name, fields in used.items():
        known = {key: tensor for key, tensor in fields.items() if key not in OPTIONAL or key in taken}
        if per_token_advantages:
            known["advantages"] = known["advantages"][:, None].expand(known["mask"].shape)
        theirs, ours = _outcome(loss_function, known, arguments, name), outcome_of(chosen, known)
        problems += difference(theirs, ours, chosen.name, name, rtol, value)
        gradients += zip(theirs[1].values(), ours[1].values(), strict=True)
    flat = [torch.cat([gradient.flatten() for gradient in side]) for side in zip(*gradients, strict=True)]
    cosine, norm = alike(*flat)
    first = f"it is not {chosen.name}: it differs in {len(problems)} of {len(used)} batches, such as"
    gradient = f"Its gradient has cosine {cosine:.4f} with the preset's, and {norm:.4g} times its norm."
    text = "\n  ".join([first, *problems[:3], gradient, expectation(chosen)])
    return Comparison(problems, cosine, norm, text)


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
    """Parameter → field; `**fields` are all fields without a parameter."""
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
    named = {name: name for name in fields}
    return _outcome(lambda **all_fields: chosen.loss(TokenBatch(**all_fields)), fields, named, chosen.name)


def difference(theirs: Outcome, ours: Outcome, name: str, batch: str, rtol: float, value: bool) -> list[str]:
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


# ---- generated batches, in float64, on which objectives differ -------------------------------------------------------

LENGTHS = (12, 5, 9, 1, 7, 3, 8, 2)
DRIFTS = (0.0, 0.001, 0.01, 0.1, 0.3, 1.0)  # standard deviations of log-ratios: from GSPO's range to far outside PPO's
EDGES = (0.5, 0.95, 1.05)  # of the distance of a clip's bound from 1
NEAR_1, NEAR_0 = -1e-3, -40.0  # log-probabilities


def random_fields(lengths: Sequence[int], seed: int, drift: float = 0.3, width: int | None = None) -> Fields:
    """The arguments of a TokenBatch, one advantage per response; padding, on the right, has random values, too.

    ``drift``: standard deviation of log-ratios; ``width``: of the tensors (default: the longest response).
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), width or max(*lengths, 1))

    def normal(*size: int) -> Tensor:
        return torch.randn(size or shape, generator=generator, dtype=torch.float64)

    old, old_entropy = -normal().abs() - 0.01, normal().abs()
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    data = {
        "log_probs": old + drift * normal(),
        "old_log_probs": old,
        "advantages": normal(len(lengths)),
        "mask": mask,
        "entropy": old_entropy + 0.1 * normal(),
        "old_entropy": old_entropy,
        "ref_log_probs": old + drift * normal(),
        "rollout_log_probs": 1.02 * old,
        "max_length": 12,
        "groups": torch.arange(len(lengths)) // 2,
        "staleness": torch.arange(len(lengths)) % 4,
    }
    # Prediction heads predict no token after a response's last one.
    has_future = mask & (mask.cumsum(1) < mask.sum(1, keepdim=True))
    old_future = torch.where(has_future, -normal().abs(), 0.0)
    future = torch.where(has_future, old_future + drift * normal(), 0.0)
    return data | {"future_log_probs": future, "old_future_log_probs": old_future}


def batches(objective: Method | None = None) -> dict[str, Fields]:
    """Name → fields, always the same; for an ``objective`` whose clip has bounds, one more just in and outside."""
    made = {f"log-ratios of {drift:g}": random_fields(LENGTHS, seed, drift) for seed, drift in enumerate(DRIFTS)}
    for name, sign in (("positive", 1), ("negative", -1)):
        fields = random_fields(LENGTHS, 10, 0.3)
        made[f"{name} advantages"] = fields | {"advantages": sign * fields["advantages"].abs()}
    fields = random_fields(LENGTHS, 11, 0.3)
    made["large and zero advantages"] = fields | {"advantages": fields["advantages"] * torch.tensor([100.0, 0.0] * 4)}
    fields = random_fields(LENGTHS, 12, 0.3)
    column = torch.arange(fields["mask"].shape[1])
    for key in ("log_probs", "old_log_probs"):
        fields[key] = torch.where(column % 3 == 0, NEAR_0 + 0.2 * fields[key], fields[key])
        fields[key] = torch.where(column % 3 == 1, NEAR_1 + 1e-4 * fields[key], fields[key])
    made["rare and certain tokens"] = fields
    made["one token each"] = random_fields([1, 1, 1, 1], 13, 0.3)
    made["one long response"] = random_fields([60, 2, 4, 1], 14, 0.1)
    fields = random_fields(LENGTHS, 15, 0.3)
    made["masked tokens inside responses"] = fields | {"mask": fields["mask"] & (column % 4 != 2)}
    made["a response without tokens"] = random_fields([6, 0, 9, 4], 16, 0.3)
    settings = objective.clip.settings if objective else {}
    ends = [1 - (settings.get("low") or 0), 1 + (settings.get("high") or 0), settings.get("cap") or 1]
    if bounds := [end for end in ends if end not in (0, 1)]:
        inside_and_outside = [1 + (end - 1) * share for end in bounds for share in EDGES for _ in (1, -1)]
        fields = random_fields([2] * len(inside_and_outside), 17, 0.0)
        change = torch.tensor(inside_and_outside, dtype=torch.float64).clamp(min=1e-3).log()[:, None]
        signs, old = torch.tensor([1.0, -1.0] * (len(inside_and_outside) // 2)), fields["old_log_probs"] - 3
        moved = {"old_log_probs": old, "log_probs": old + change, "advantages": fields["advantages"].abs() * signs}
        made["at the bounds of its clip"] = fields | moved
    # Log-probabilities below 0, because some objectives compute with the probabilities.
    below = ("log_probs", "old_log_probs", "ref_log_probs")
    return {name: f | {key: f[key].clamp(max=NEAR_1 / 2) for key in below} for name, f in made.items()}
