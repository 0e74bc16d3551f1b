"""A running trainer compared with a preset: the gradient read from the weights before and after steps of plain SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from policygrain.errors import UserError
from policygrain.integrations.conformance import alike, expectation
from policygrain.objective import Method, method
from policygrain.objective.batch import TokenBatch

# With these settings of transformers' TrainingArguments a step is w − learning_rate · gradient, and nothing else.
PLAIN_SGD: dict[str, Any] = {"optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0, "bf16": False, "fp16": False}
RATIOS_ARE_1 = 1e-6


class NoGradient(UserError):
    """A step without gradient, by which objectives cannot be compared."""


class Step(NamedTuple):
    """An optimizer step of plain SGD that a trainer took."""

    before: Sequence[Tensor]  # copies of the model's parameters, in their order
    after: Sequence[Tensor]
    learning_rate: float
    batch: Callable[[], TokenBatch]  # of the whole step; called with the weights of `before` in the model


def assert_step(model: torch.nn.Module, step: Step, objective: str | Method, *, rtol: float = 1e-2) -> None:
    """AssertionError unless the step is w − learning_rate · (the gradient of a preset). The weights are restored.

    ``rtol``: largest distance of the two gradients, relative to the norm of the preset's; weights in float32 cause
    some. NoGradient, a UserError, if both gradients are 0.
    """
    __tracebackhide__ = True
    chosen = method(objective) if isinstance(objective, str) else objective
    parameters = list(model.parameters())
    with _weights_before(model, step):
        expected = _gradient(chosen, step.batch(), [p for p in parameters if p.requires_grad])
        pairs = zip(parameters, step.before, step.after, strict=True)
        actual = torch.cat([((b - a) / step.learning_rate).flatten() for p, b, a in pairs if p.requires_grad])
        if not (expected.any() or actual.any()):
            raise NoGradient(
                f"this step cannot be checked: its gradient and that of {chosen.name} are 0. "
                "Are all rewards equal, or all tokens clipped?"
            )
        if float((actual - expected).norm()) <= rtol * float(expected.norm()):
            return
    cosine, norm = alike(actual, expected)
    raise AssertionError(
        f"the trainer's step is not that of {chosen.name}: its gradient has cosine {cosine:.4f} with that of "
        f"{chosen.name} and {norm:.4g} times its norm. {expectation(chosen)}"
    )


def assert_trl(trainer: Any, objective: str | Method, *, rtol: float = 1e-2) -> None:
    """Train a GRPOTrainer of TRL, or of a subclass, and check each of its steps.

    Its arguments need `PLAIN_SGD`, a constant learning rate, and more than one update per batch of rollouts
    (`num_iterations=2`), or all ratios are 1. UserError for other settings.
    """
    __tracebackhide__ = True
    shown = []
    for step in trl_steps(trainer):
        try:
            assert_step(trainer.model, step, objective, rtol=rtol)
            shown.append(step)
        except NoGradient:  # of the preset and of the trainer, as if all tokens are clipped
            continue
    if all(on_policy(trainer.model, step) for step in shown):
        raise UserError(
            "in all steps that have a gradient all ratios are 1, so ratio and clip were not checked: set "
            "num_iterations=2, or another learning rate if every token was clipped."
        )


def trl_steps(trainer: Any) -> list[Step]:
    """The steps of `trainer.train()`, with the batches that TRL made. UserError where a step is no plain SGD."""
    from transformers import TrainerCallback

    wrong = [f"{k}={v!r}" for k, v in PLAIN_SGD.items() if (getattr(trainer.args, k) or 0) != (v or 0)]
    if wrong:
        raise UserError(f"a gradient is read from steps of plain SGD: set {', '.join(wrong)}.")
    if trainer.accelerator.num_processes > 1:
        raise UserError("a gradient is read on one process; TRL adds up others.")
    steps: list[Step] = []
    inputs: list[dict[str, Any]] = []
    compute = trainer._compute_loss

    def recorded(model: Any, batch: dict[str, Any]) -> Any:
        if model.training:
            inputs.append(dict(batch))
        return compute(model, batch)

    class Recorder(TrainerCallback):
        """Copies the weights around each optimizer step."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            inputs.clear()
            self.before, self.rate = _weights(trainer.model), float(trainer.optimizer.param_groups[0]["lr"])

        def on_step_end(self, *_: Any, **__: Any) -> None:
            taken = list(inputs)
            steps.append(Step(self.before, _weights(trainer.model), self.rate, lambda: _trl_batch(trainer, taken)))

    trainer._compute_loss = recorded
    trainer.add_callback(Recorder())
    trainer.train()
    trainer._compute_loss = compute
    return steps


def _trl_batch(trainer: Any, inputs: Sequence[dict[str, Any]]) -> TokenBatch:
    """The micro-batches of a step as one batch, scored by the model with its current weights."""
    from policygrain.integrations.trl import fields_of, score

    parts = [fields_of(batch, *score(trainer, trainer.model, batch)[:2]) for batch in inputs]
    advantages = torch.cat([part.pop("advantages") for part in parts])
    known = [{key: value for key, value in part.items() if value is not None} for part in parts]
    # TRL shuffles rows; equal prompts are a group.
    groups = torch.cat([batch["prompt_ids"] for batch in inputs]).unique(dim=0, return_inverse=True)[1]
    return TokenBatch(**joined(known), advantages=advantages, groups=groups, max_length=trainer.max_completion_length)


def joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """Tensors of several micro-batches, [batch, tokens] each, as one batch, padded on the right."""
    widest = max(part["mask"].shape[1] for part in parts)
    return {key: torch.cat([F.pad(part[key], (0, widest - part[key].shape[1])) for part in parts]) for key in parts[0]}


def on_policy(model: torch.nn.Module, step: Step) -> bool:
    """Whether all ratios of the step are 1."""
    with _weights_before(model, step), torch.no_grad():
        return float(step.batch().log_ratio.abs().max()) <= RATIOS_ARE_1


@contextmanager
def _weights_before(model: torch.nn.Module, step: Step) -> Iterator[None]:
    """Context in which the model has its weights before the step."""
    now = _weights(model)
    _set(model, step.before)
    try:
        yield
    finally:
        _set(model, now)


def _gradient(chosen: Method, batch: TokenBatch, parameters: Sequence[Tensor]) -> Tensor:
    loss = chosen.loss(batch).loss
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def _weights(model: torch.nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _set(model: torch.nn.Module, values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
