"""The policy with its optimizer: scores of rollouts under it and under the reference policy, and optimizer steps."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import UserError
from ..model.device import device, fits_beside_updates, resolve_compute, set_compute_dtype
from ..model.engine import Rollout
from ..model.loading import add_adapter, load_model
from ..model.scoring import MTPHeads, TokenScores, micro_batches, recompute_layers, score_tokens
from ..model.small import LanguageModel
from ..objective import Method
from ..objective.batch import StepTotals
from ..objective.loss import merge_metrics
from ..provenance import seed_of
from ..study.schema import Model, Training
from .batch import Batch, width_of


@dataclass
class Policy:
    """The model that a run trains, and the reference policy (the initial model) for the KL divergence."""

    model: LanguageModel
    tokenizer: Any
    reference: LanguageModel | None  # in host memory; None: the reference policy is ``model`` without its adapter
    heads: MTPHeads | None = None  # None if the ratio of the method needs none
    optimizer: Any = None  # None: TRL's trainer has it

    @property
    def parts(self) -> dict[str, Any]:
        """The parts with a state that training changes, by name: the content of a checkpoint."""
        parts = {"model": self.model, "heads": self.heads, "optimizer": self.optimizer}
        return {name: part for name, part in parts.items() if part is not None}

    def score(self, rollouts: Sequence[Rollout], settings: Training) -> TokenScores:
        """Scores of all responses under the policy, with what the heads predict, without gradient."""
        return score_rollouts(self.model, rollouts, settings, self.heads)

    def score_reference(self, rollouts: Sequence[Rollout], settings: Training) -> TokenScores | None:
        """Scores under the reference policy; None if a trainer has not loaded it."""
        with on_device(self.reference, self.model) as start:
            return score_rollouts(start, rollouts, settings)

    def warm_up_rate(self, share: float) -> None:
        """Set learning rates to ``share``, at most 1, of their initial values."""
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["initial_lr"] * min(1.0, share)


def open_policy(start: str, spec: Model, method: Method, settings: Training, seed: int, fused: bool = True) -> Policy:
    """The policy at the start of training: the weights of ``start`` in ``spec.dtype``, with adapter and optimizer."""
    model, tokenizer, reference = open_models(start, spec, settings, seed, fused=fused, small=True)
    if settings.activation_checkpointing:
        recompute_layers(model)
    heads = build_heads(model, method, seed)
    return Policy(model, tokenizer, reference, heads, make_optimizer(model, heads, method, settings))


def open_models(
    start: str, spec: Model, settings: Training, seed: int, *, sharded: bool = False, **how: bool
) -> tuple[Any, Any, LanguageModel | None]:
    """(model with its adapter, tokenizer, reference policy in host memory, which an adapter replaces).

    Models that are to be ``sharded`` by a trainer are loaded into host memory, and without a reference policy.
    ``how``: options of `load_model`; ``small`` only where no setting needs the model of transformers.
    """
    host = torch.device("cpu")
    if spec.lora is not None or settings.activation_checkpointing:
        how["small"] = False
    model, tokenizer = load_model(start, spec.revision, spec.dtype, host if sharded else None, **how)
    compute = resolve_compute(settings.compute, spec.dtype)
    set_compute_dtype(model, compute)
    if spec.lora is not None:
        add_adapter(model, spec.lora, seed_of("adapter", seed))
    if spec.lora is not None or sharded:
        return model, tokenizer, None
    reference, _ = load_model(start, spec.revision, spec.dtype, host, **how)
    set_compute_dtype(reference, compute)
    reference.requires_grad_(False)
    if torch.cuda.is_available():  # copies from pinned memory to a GPU are several times as fast
        for parameter in reference.parameters():
            parameter.data = parameter.data.pin_memory()
    return model, tokenizer, reference


def build_heads(model: LanguageModel, method: Method, seed: int) -> MTPHeads | None:
    if not method.n_mtp_heads:
        return None
    with torch.random.fork_rng():
        torch.manual_seed(seed_of("heads", seed))
        return MTPHeads(model.config.hidden_size, method.n_mtp_heads).to(device(), model.dtype)


def make_optimizer(
    model: torch.nn.Module, heads: MTPHeads | None, method: Method, settings: Training, kind: Any = torch.optim.AdamW
) -> torch.optim.AdamW:
    """AdamW, or a subclass of it; prediction heads have their own learning rate."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained, "lr": settings.learning_rate}]
    if heads is not None:
        groups.append({"params": list(heads.parameters()), "lr": method.mtp_heads.learning_rate})
    optimizer: torch.optim.AdamW = kind(groups, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def score_rollouts(
    model: LanguageModel, rollouts: Sequence[Rollout], settings: Training, heads: MTPHeads | None = None
) -> TokenScores:
    """Log-probabilities and entropies of all responses under ``model``, without gradient."""
    names = ("log_probs", "entropy") if heads is None else ("log_probs", "entropy", "future")
    whole = {name: torch.zeros((len(rollouts), width_of(rollouts)), device=model.device) for name in names}
    with torch.no_grad():
        for rows in micro_batches(rollouts, settings.micro_batch_tokens):
            scores = score_tokens(model, [rollouts[row] for row in rows], settings.temperature, heads=heads)
            for name, values in whole.items():
                values[rows, : scores.log_probs.shape[1]] = getattr(scores, name)
    return TokenScores(**whole)


@contextmanager
def on_device(reference: LanguageModel | None, model: Any) -> Iterator[LanguageModel]:
    """Context with the reference policy on the compute device: ``reference``, else ``model`` without its adapter."""
    if reference is None:
        model.disable_adapters()
        try:
            yield model
        finally:
            model.enable_adapters()
        return
    # Its weights never change, so nothing has to be copied back.
    tensors, place = (*reference.parameters(), *reference.buffers()), device()
    on_host = reference.__dict__.setdefault("policygrain_on_host", [tensor.data for tensor in tensors])
    try:
        for tensor, host in zip(tensors, on_host, strict=True):
            if tensor.device != place:
                tensor.data = host.to(place, non_blocking=True)
        yield reference
    finally:  # it goes back to the host if room is scarce
        if not fits_beside_updates(sum(host.nbytes for host in on_host)):
            for tensor, host in zip(tensors, on_host, strict=True):
                tensor.data = host


def update(policy: Policy, batch: Batch, method: Method, settings: Training) -> dict[str, float]:
    """One optimizer step on ``batch``; returns its metrics. UserError, and no step, if the gradient is not finite."""
    model, heads, optimizer = policy.model, policy.heads, policy.optimizer
    optimizer.zero_grad(set_to_none=True)
    whole = step_context(policy, batch, method, settings)
    entropy_gradient = "entropy_gradient" in method.needs
    outputs, future_losses = [], []
    for rows in micro_batches(batch.rollouts, settings.micro_batch_tokens):
        part = batch.rows(rows)
        scores = score_tokens(model, part.rollouts, settings.temperature, entropy_gradient, heads)
        out = method.loss(part.under(scores, whole))
        loss = out.loss
        if scores.future_loss is not None:
            # The heads are trained further, because the policy that they predict changes.
            future_loss = scores.future_loss / sum(len(rollout.ids) for rollout in batch.rollouts)
            loss = loss + method.mtp_heads.loss_weight * future_loss
            future_losses.append(future_loss.detach())
        with fixed_order():
            loss.backward()
        outputs.append(out)
    if heads is not None:
        torch.nn.utils.clip_grad_norm_(heads.parameters(), settings.max_grad_norm)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm).item()
    # Metrics are read here, when all passes have been started.
    metrics = merge_metrics([out.metrics for out in outputs])
    if future_losses:
        metrics["future_loss"] = sum(x.item() for x in future_losses)
    metrics |= {"gradient_norm": norm, "learning_rate": optimizer.param_groups[0]["lr"]}
    check_step(metrics)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)  # frees memory for a colocated engine
    return metrics


@contextmanager
def fixed_order() -> Iterator[None]:
    """Context in which a GPU sums gradients in a fixed order, so that a resumed run is the same bit for bit."""
    if not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a pass over every new tensor
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check_step(metrics: dict[str, float]) -> None:
    if not math.isfinite(metrics["gradient_norm"]):
        raise UserError(
            f"the gradient is not finite (loss {metrics['loss']}, largest ratio {metrics['ratio_max']:.3g}); a lower "
            "learning rate or a clip may help."
        )


def step_context(policy: Policy, batch: Batch, method: Method, settings: Training) -> StepTotals:
    """Step context used to normalise micro-batches, with current log-probabilities if the method needs them."""
    step = batch.tokens.replace(step=None)
    if "step_log_probs" in method.needs:
        now = policy.score(batch.rollouts, settings)
        step = step.replace(log_probs=now.log_probs, entropy=now.entropy, future_log_probs=now.future)
    # Groups are whole in the batch, and may be divided between its minibatches.
    return replace(method.step_of(step), responses=batch.tokens.whole.responses)
