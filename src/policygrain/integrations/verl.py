"""verl: every method as a policy loss, `actor.policy_loss.loss_mode=policygrain.NAME` (docs/your-trainer.md).

verl imports this module as an entry point of the group `verl.plugins` in every worker process. Methods of your own are
in the file that POLICYGRAIN_METHODS names, that of an exported arm in the folder that POLICYGRAIN_EXPORTED names.
"""

from __future__ import annotations

import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss

from ..objective import Method, method, method_names
from ..objective.batch import StepTotals, TokenBatch
from ..objective.loss import FLAGS, merge_metrics
from ..objective.method import resolved_methods
from .options import EXPORTED, METHODS_FILE, VERL_LACKS, UnsupportedOption, methods_file, reads_entropies, refuse

PREFIX = "policygrain."
METHODS = "POLICYGRAIN_METHODS"
DEFAULT_AGGREGATION, DEFAULT_CLIP = "token-mean", 0.2  # of verl's ActorConfig
# Metrics that are sums over the step, of which a mean over micro-batches has no meaning; verl logs the loss itself.
SUMS = ("policy_loss", "penalty", "loss")

logger = logging.getLogger(__name__)
# Entropies of both policies, for losses that are called inside `with_entropies`.
_entropies: ContextVar[dict[str, Any] | None] = ContextVar("policygrain_entropies", default=None)


def register() -> None:
    """Register all methods as verl's policy losses. UserError for a method that does not work."""
    own: dict[str, Any] = {}
    if path := os.environ.get(METHODS):
        own |= methods_file(Path(path), METHODS)
    if folder := os.environ.get(EXPORTED):
        own |= methods_file(Path(folder) / METHODS_FILE, EXPORTED)
    methods = {name: method(name) for name in method_names()} | resolved_methods(own)
    for name, chosen in methods.items():
        chosen.check()
        register_policy_loss(PREFIX + name)(functools.partial(policy_loss, chosen))
    names = ", ".join(PREFIX + name for name in methods)
    logger.info("PolicyGrain: registered %d policy losses: %s", len(methods), names)


def policy_loss(
    objective: Method,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = DEFAULT_AGGREGATION,
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The method's loss of a micro-batch, and metrics. Tensors are [batch, tokens].

    Normalised by the mini-batch (`config.global_batch_info`) and multiplied by the number of ranks, over which verl
    averages gradients. UnsupportedOption for options of verl that this loss does not read, or that would add a penalty.
    """
    info: Mapping[str, Any] = getattr(config, "global_batch_info", None) or {}
    longest = {"actor.loss_scale_factor": info.get("loss_scale_factor")}  # else verl has that of the micro-batch
    refuse(objective, "verl", VERL_LACKS, _wrong(objective, loss_agg_mode, config), **longest)
    batch = TokenBatch(
        log_prob,
        old_log_prob,
        advantages,
        response_mask,
        rollout_weights=rollout_is_weights,
        max_length=info.get("loss_scale_factor"),
        **(_entropies.get() or {}),
    )
    totals = batch.whole
    step = StepTotals(
        n_tokens=info.get("batch_num_tokens") or totals.n_tokens,
        n_responses=info.get("global_batch_size") or totals.n_responses,
        max_length=totals.max_length,
        micro_batch_statistics=True,  # verl computes a micro-batch at a time, and its own clip_cov and kl_cov do so too
    )
    if reads_entropies(objective) and not batch.has_entropies:
        _say_by_covariance(objective.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the objective's own warning of covariances, which users of verl do not see
        out = objective.loss(batch.replace(step=step))
    return out.loss * (info.get("dp_size") or 1), _metrics(out.metrics, float(step.n_tokens) / float(totals.n_tokens))


def with_entropies(ppo_loss: Callable[..., Any]) -> Callable[..., Any]:
    """verl's `ppo_loss`, passing entropies to its policy loss, so that TEPO's mask is measured.

    They are the model's (`actor.calculate_entropy=true`) and, as the field `entropy` of the data, those of the pass for
    old log-probabilities. UnsupportedOption if either is missing.
    """

    @functools.wraps(ppo_loss)
    def wrapped(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        from verl.workers.utils.padding import no_padding_2_padding

        current = model_output.get("entropy", None)
        if current is None or "entropy" not in set(data.keys()):
            missing = "actor.calculate_entropy=true" if current is None else "the field `entropy` in the actor's data"
            raise UnsupportedOption(f"a mask by measured entropies needs {missing}.")
        old = data.select("entropy").to_padded_tensor()["entropy"]
        token = _entropies.set({"entropy": no_padding_2_padding(current, data).detach(), "old_entropy": old})
        try:
            return ppo_loss(config, model_output, data, dp_group)
        finally:
            _entropies.reset(token)

    return wrapped


@functools.cache  # once per method
def _say_by_covariance(name: str) -> None:
    logger.warning(
        f"{PREFIX}{name}: verl passes no entropies to a policy loss, so the mask uses covariances over each "
        "micro-batch. How to measure it: docs/your-trainer.md of PolicyGrain, `with_entropies`."
    )


def _metrics(parts: dict[str, float], scale: float) -> dict[str, float]:
    whole = {name for name in parts if name.endswith("_max") or name in FLAGS}
    means = {name: value if name in whole else value * scale for name, value in parts.items()}
    merged = {name: value for name, value in merge_metrics([means]).items() if name not in SUMS}
    clipped = merged["clip_fraction_low"] + merged["clip_fraction_high"]
    named = {f"policygrain/{name}": value for name, value in merged.items()}
    return named | {"actor/pg_clipfrac": clipped, "actor/ppo_kl": merged["kl_old"]}


def _wrong(objective: Method, loss_agg_mode: str, config: Any) -> Iterator[str]:
    aggregation, clip = objective.aggregation.name, objective.clip.settings
    if loss_agg_mode not in (aggregation.replace("_", "-"), DEFAULT_AGGREGATION):
        yield f"its aggregation is {aggregation}; leave out actor.loss_agg_mode={loss_agg_mode}."
    if getattr(config, "entropy_coeff", 0):
        yield "actor.entropy_coeff adds an entropy bonus that is not the method's; set it to 0."
    if getattr(config, "use_kl_loss", False):
        yield "actor.use_kl_loss adds a KL penalty that is not the method's; set it to false."
    if objective.anchor == "rollout":
        yield (
            "its anchor is the engine that sampled, which verl does not give to a loss; use anchor: old with "
            "algorithm.rollout_correction.bypass_mode=true, where verl's old log-probabilities are the engine's (not "
            "with trainer.use_v1=false, which then takes a loss of its own)."
        )
    for side in ("low", "high"):
        bound = getattr(config, f"clip_ratio_{side}", None)
        if bound not in (None, DEFAULT_CLIP, clip.get(side)):
            yield (
                f"actor.clip_ratio_{side}={bound} has no effect; the method's is {clip.get(side)}. Define a method "
                f"with another clip in the file that {METHODS} names."
            )


try:
    register()
except Exception:
    logger.exception("PolicyGrain: no policy loss was registered")  # verl mentions it at level DEBUG only
    raise
