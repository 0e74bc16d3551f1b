"""From a method's data to its functions: the one module of this room that imports torch and the objective."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from torch import Tensor

from ..errors import UserError, did_you_mean
from ..objective import advantage, aggregate, clip, penalty, ratio
from ..objective.batch import StepTotals, TokenBatch
from ..objective.loss import LossOutput, importance, policy_loss
from ..settings import problem_of
from . import clips, parts
from .custom import import_function
from .part import Custom, Part

if TYPE_CHECKING:
    from .method import Method

__all__ = ["check", "function", "loss", "resolve", "view"]

FUNCTIONS: dict[type[Part], Callable[..., Any]] = {
    parts.Grpo: advantage.grpo,
    parts.DrGrpo: advantage.dr_grpo,
    parts.Rloo: advantage.rloo,
    parts.TokenRatio: ratio.token,
    parts.SequenceRatio: ratio.sequence,
    parts.PrefixRatio: ratio.prefix,
    parts.ProductRatio: ratio.product,
    parts.Block: ratio.block,
    parts.GroupExpectation: ratio.group_expectation,
    parts.NoRatio: ratio.none,
    clips.PpoClip: clip.ppo,
    clips.NoClip: clip.none,
    clips.ClipCov: clip.clip_cov,
    clips.Likelihood: clip.likelihood,
    clips.Gmpo: clip.gmpo,
    clips.Sapo: clip.sapo,
    clips.DppoTv: clip.dppo_tv,
    clips.DppoKl: clip.dppo_kl,
    clips.Vespo: clip.vespo,
    clips.Fipo: clip.fipo,
    parts.TokenMean: aggregate.token_mean,
    parts.SeqMeanTokenMean: aggregate.seq_mean_token_mean,
    parts.SeqMeanTokenSum: aggregate.seq_mean_token_sum,
    parts.SeqMeanTokenSumNorm: aggregate.seq_mean_token_sum_norm,
    parts.PromptMean: aggregate.prompt_mean,
    parts.Kl: penalty.kl,
    parts.EntropyBonus: penalty.entropy_bonus,
    parts.KlCov: penalty.kl_cov,
    parts.SquaredLogRatio: penalty.squared_log_ratio,
}


def function(part: Part) -> Callable[..., Any]:
    """The pure function of a part, with its parameters bound. UserError if a custom one cannot be imported."""
    return functools.partial(resolve(part), **part.settings)


def resolve(part: Part) -> Callable[..., Any]:
    """The function that a part names. UserError if a custom one cannot be imported."""
    return import_function(part.name) if isinstance(part, Custom) else FUNCTIONS[type(part)]


def loss(method: Method, batch: TokenBatch) -> LossOutput:
    """The method's objective on a batch."""
    functions = function(method.ratio), function(method.clip), function(method.aggregation)
    penalties = [function(part) for part in method.penalties]
    flags: dict[str, float] = {}
    by_covariance = not batch.has_entropies and any(
        isinstance(part, parts.Kl) and part.mask != "all" and part.entropy_signal == "auto" for part in method.penalties
    )
    if by_covariance:
        warnings.warn(
            f"{method.name}: the batch has no entropies, so the mask of its KL penalty goes by covariances instead of "
            "measured entropies. Give TokenBatch `entropy` and `old_entropy`, or choose `entropy_signal: covariance`.",
            stacklevel=3,
        )
        flags["mask_signal_covariance"] = 1.0
    if isinstance(batch.step, StepTotals) and (by_covariance or "step_log_probs" in method.needs):
        if not batch.step.micro_batch_statistics:
            raise ValueError(
                f"{method.name}: reads statistics of the whole optimizer step (covariances), and TokenBatch.step has "
                "only its totals. Give it the whole step as a TokenBatch, or StepTotals with "
                "micro_batch_statistics=True, where results depend on how a step is divided."
            )
        flags["micro_batch_statistics"] = 1.0
    out = policy_loss(
        batch,
        *functions,
        penalties,
        entropy_signal=method.entropy_signal,
        off_policy_bound=method.off_policy_bound,
    )
    return LossOutput(out.loss, out.metrics | flags)


def view(method: Method, batch: TokenBatch) -> dict[str, Tensor]:
    """What the method computes for each token. [batch, tokens]."""
    r = importance(batch, function(method.ratio))
    surrogate = function(method.clip)(r, batch)
    drop = penalty.entropy_drop_mask(batch, method.entropy_signal)
    return {"ratio": r, "clipped_low": surrogate.low, "clipped_high": surrogate.high, "entropy_drop": drop}


def check(method: Method) -> None:
    """Run a method on a small example that holds what its parts need and nothing else. UserError names the key."""
    where = f"methods.{method.name}"
    for key, part in method.parts().items():
        if isinstance(part, Custom):
            _check_own(part, f"{where}.{key}")
    batch = _example(method)
    assert batch.entropy is not None
    try:
        with torch.random.fork_rng(devices=[]):
            out = loss(method, batch.replace(step=method.step_of(batch)))
        function(method.advantage)(torch.zeros(2, 2))
        gradients = torch.autograd.grad(out.loss, [batch.log_probs, batch.entropy], allow_unused=True)
    except Exception as error:  # a function of the user's may raise anything
        raise UserError(f"{where}: the method does not work on a small example: {error}") from error
    if gradients[1] is not None and gradients[1].any() and "entropy_gradient" not in method.needs:
        raise UserError(
            f"{where}: the loss depends on batch.entropy, which has no gradient in training unless a function declares "
            'it: `@needs("entropy_gradient")`.'
        )


def _check_own(part: Custom, where: str) -> None:
    """UserError if a custom function cannot be imported or does not accept its parameters."""
    try:
        own = resolve(part)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    parameters = inspect.signature(own).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    hints = _hints(own)
    for key, value in part.settings.items():
        if key not in known:
            hint = did_you_mean(key, known) if known else " It has no keyword parameters (after a `*`)."
            raise UserError(f"{where}.{key}: {part.name!r} has no parameter {key!r}.{hint}")
        if problem := problem_of(value, hints.get(key, Any)):
            raise UserError(f"{where}.{key}: {problem}")


def _hints(own: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(own)
    except NameError:  # a name that is imported for type checkers alone
        return {}


def _example(method: Method) -> TokenBatch:
    """Two responses with what the method needs: what fails here would fail after hours of sampling."""
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
        future_log_probs=future,
        old_future_log_probs=future,
        groups=torch.tensor([0, 1]) if "groups" in needs else None,
        segments=torch.tensor([[0, 0, 1], [0, 1, 1]]) if "segments" in needs else None,
    )
