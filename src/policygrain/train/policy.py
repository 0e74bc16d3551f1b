"""The policy with its optimizer, adapter and reference policy, and the scores of sequences under both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..model.device import device, fits_beside_updates
from ..model.loading import load_model, recompute_layers
from ..model.logprobs import TokenScores, score_tokens
from ..model.mtp_heads import MTPHeads
from ..model.precision import resolve_compute, set_compute_dtype
from ..model.sequences import Sequences, micro_batches
from ..model.weights import add_adapter
from ..provenance import seed_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..objective import Method
    from ..study.schema import Model, Training


@contextmanager
def on_device(reference: PreTrainedModel | None, model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Context in which ``reference`` is on the compute device; afterwards it goes back to the host if room is scarce.

    With ``reference=None`` the initial policy is ``model`` with its adapter disabled.
    """
    if reference is None:
        model.disable_adapters()
        try:
            yield model
        finally:
            model.enable_adapters()
    else:
        # Its weights never change, so nothing has to be copied back.
        tensors, place = (*reference.parameters(), *reference.buffers()), device()
        on_host = reference.__dict__.setdefault("policygrain_on_host", [tensor.data for tensor in tensors])
        try:
            for tensor, host in zip(tensors, on_host, strict=True):
                if tensor.device != place:
                    tensor.data = host.to(place, non_blocking=True)
            yield reference
        finally:
            if not fits_beside_updates(sum(host.nbytes for host in on_host)):
                for tensor, host in zip(tensors, on_host, strict=True):
                    tensor.data = host


@dataclass
class ScoredPolicy:
    """The model that a run trains and the reference policy (the initial model) for the KL divergence.

    ``reference`` is kept in host memory; None: the reference policy is ``model`` without its adapter.
    """

    model: PreTrainedModel
    tokenizer: Any
    reference: PreTrainedModel | None

    def score(self, sequences: Sequences, settings: Training) -> TokenScores:
        """Log-probabilities and entropies of all responses under the policy, without gradient."""
        return score_sequences(self.model, sequences, settings)

    def score_reference(self, sequences: Sequences, settings: Training) -> TokenScores | None:
        """Log-probabilities and entropies under the reference policy; None if a trainer has not loaded it."""
        with on_device(self.reference, self.model) as start:
            return score_sequences(start, sequences, settings)


@dataclass
class Policy(ScoredPolicy):
    """The policy with prediction heads, optimizer and gradient scaler, for the loop of this package.

    ``heads`` are multi-token prediction heads; None if the ratio of the method needs none.
    """

    heads: MTPHeads | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        tokenizer: Any,
        reference: PreTrainedModel | None,
        method: Method,
        settings: Training,
        heads: MTPHeads | None = None,
    ) -> Policy:
        """A policy with a new optimizer for ``model`` and ``heads``."""
        optimizer = make_optimizer(model, heads, method, settings)
        return cls(model, tokenizer, reference, heads, optimizer, make_scaler(settings))

    @property
    def parts(self) -> dict[str, Any]:
        """The parts with a state that training changes, by name: the content of a checkpoint."""
        parts = {"model": self.model, "heads": self.heads, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def score(self, sequences: Sequences, settings: Training) -> TokenScores:
        """Log-probabilities and entropies of all responses under the policy, without gradient."""
        return score_sequences(self.model, sequences, settings, self.heads)

    def warm_up_rate(self, share: float) -> None:
        """Set learning rates to ``share``, at most 1, of their initial values."""
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["initial_lr"] * min(1.0, share)


def score_sequences(
    model: PreTrainedModel, sequences: Sequences, settings: Training, heads: MTPHeads | None = None
) -> TokenScores:
    """Log-probabilities and entropies of all responses under ``model``, without gradient."""
    names = ("log_probs", "entropy", "future") if heads else ("log_probs", "entropy")
    whole = {name: torch.zeros(sequences.mask.shape, device=model.device) for name in names}
    with torch.no_grad():
        for rows in micro_batches(sequences, settings.micro_batch_tokens):
            part = sequences.rows(rows)
            scores = score_tokens(model, part, settings.temperature, heads=heads)
            for name, values in whole.items():
                values[rows, : part.mask.shape[1]] = getattr(scores, name)
    return TokenScores(whole["log_probs"], whole["entropy"], whole.get("future"), None)


def open_policy(start: str, spec: Model, method: Method, settings: Training, seed: int, fused: bool = True) -> Policy:
    """The policy at the start of training: the weights of ``start`` in ``spec.dtype``, with adapter and optimizer."""
    model, tokenizer, reference = open_models(start, spec, settings, seed, fused=fused)
    if settings.activation_checkpointing:
        recompute_layers(model)
    return Policy.of(model, tokenizer, reference, method, settings, build_heads(model, method, seed))


def open_models(
    start: str,
    spec: Model,
    settings: Training,
    seed: int,
    place: torch.device | None = None,
    with_reference: bool = True,
    fused: bool = True,
) -> tuple[PreTrainedModel, Any, PreTrainedModel | None]:
    """(model with its adapter on the device ``place``, tokenizer, reference policy in host memory).

    ``place`` is `device()` by default. The reference policy is None with an adapter, and without ``with_reference``.
    """
    model, tokenizer = load_model(start, spec.revision, spec.dtype, place, fused)
    reference = None
    if spec.lora is not None:
        add_adapter(model, spec.lora, seed_of("adapter", seed))
    elif with_reference:
        reference, _ = load_model(start, spec.revision, spec.dtype, torch.device("cpu"), fused)
        reference.requires_grad_(False)
        if torch.cuda.is_available():  # copies from pinned memory to a GPU are several times as fast
            for parameter in reference.parameters():
                parameter.data = parameter.data.pin_memory()
    compute = resolve_compute(settings.compute, spec.dtype)
    for part in (model, reference):
        if part is not None:
            set_compute_dtype(part, compute)
    return model, tokenizer, reference


def build_heads(model: PreTrainedModel, method: Method, seed: int) -> MTPHeads | None:
    """The untrained heads that the method's ratio needs; None where it needs none."""
    if not method.n_mtp_heads:
        return None
    with torch.random.fork_rng():
        torch.manual_seed(seed_of("heads", seed))
        return MTPHeads(model.config.hidden_size, method.n_mtp_heads).to(device(), model.dtype)


def make_optimizer(
    model: torch.nn.Module,
    heads: MTPHeads | None,
    method: Method,
    settings: Training,
    kind: type[torch.optim.AdamW] = torch.optim.AdamW,
) -> torch.optim.AdamW:
    """AdamW, or a subclass of it; prediction heads have their own learning rate."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.requires_grad], "lr": settings.learning_rate}
    ]
    if heads is not None:
        groups.append({"params": list(heads.parameters()), "lr": method.mtp_heads.learning_rate})
    optimizer = kind(groups, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def make_scaler(settings: Training) -> torch.amp.GradScaler:
    """The gradient scaler against underflow in float16; it is disabled for other data types."""
    return torch.amp.GradScaler(device().type, enabled=settings.compute == "float16")
