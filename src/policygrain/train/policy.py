"""The policy with its optimizer and reference policy, with adapter and sharding as in the study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..model.adapters import add_adapter
from ..model.device import device
from ..model.loading import load_model, recompute_layers
from ..model.mtp_heads import MTPHeads
from ..model.precision import resolve_compute, set_compute_dtype
from ..model.sharding import local_part, shard
from ..provenance import seed_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..objective import Method
    from ..study.schema import Model, Training


@dataclass
class Policy:
    """The model that a run trains, its optimizer, and the reference policy (the initial model) for the KL divergence.

    ``reference`` is kept in host memory; None: the reference policy is ``model`` without its adapter. ``heads`` are
    multi-token prediction heads; None if the ratio of the method needs none.
    """

    model: PreTrainedModel
    tokenizer: Any
    reference: PreTrainedModel | None
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
    def modules(self) -> list[torch.nn.Module]:
        """The parts with weights that training changes."""
        return [part for part in (self.model, self.heads) if part is not None]

    @property
    def state_bytes(self) -> int:
        """Bytes, on the device, of this rank's weights, their gradients and AdamW's two moments."""
        parts = (local_part(p) for module in self.modules for p in module.parameters())
        weights = [part for part in parts if part.device.type == device().type]
        return sum(w.numel() * w.element_size() * (4 if w.requires_grad else 1) for w in weights)

    @property
    def parts(self) -> dict[str, Any]:
        """The parts with a state that training changes, by name: the content of a checkpoint."""
        parts = {"model": self.model, "heads": self.heads, "optimizer": self.optimizer, "scaler": self.scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def warm_up_rate(self, share: float) -> None:
        """Set learning rates to ``share`` of their values, to 1 at most."""
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = parameters["initial_lr"] * min(1.0, share)


def open_policy(start: str, spec: Model, method: Method, settings: Training, seed: int) -> Policy:
    """The policy at the start of training: the weights of ``start`` in ``spec.dtype``, with adapter and sharding.

    Every rank reads the whole model into host memory, also if it keeps only a shard of it.
    """
    host = torch.device("cpu")
    model, tokenizer = load_model(start, spec.revision, spec.dtype, None if settings.fsdp is None else host)
    reference = None
    if spec.lora is None:
        reference, _ = load_model(start, spec.revision, spec.dtype, host)
        reference.requires_grad_(False)
        if torch.cuda.is_available():  # copies from pinned memory to a GPU are several times as fast
            for parameter in reference.parameters():
                parameter.data = parameter.data.pin_memory()
    else:
        add_adapter(model, spec.lora, seed_of("adapter", seed))
    if settings.activation_checkpointing:
        recompute_layers(model)
    compute = resolve_compute(settings.compute, spec.dtype)
    for part in (model, reference):
        if part is not None:
            set_compute_dtype(part, compute)
            if settings.fsdp is not None:
                shard(part, settings.fsdp.cpu_offload or part is reference)
    return Policy.of(model, tokenizer, reference, method, settings, build_heads(model, method, seed))


def build_heads(model: PreTrainedModel, method: Method, seed: int) -> MTPHeads | None:
    """The untrained heads that the method's ratio needs; None where it needs none."""
    if not method.n_mtp_heads:
        return None
    with torch.random.fork_rng():
        torch.manual_seed(seed_of("heads", seed))
        return MTPHeads(model.config.hidden_size, method.n_mtp_heads).to(device(), model.dtype)


def make_optimizer(
    model: PreTrainedModel, heads: MTPHeads | None, method: Method, settings: Training
) -> torch.optim.Optimizer:
    """AdamW; prediction heads have their own learning rate."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.requires_grad], "lr": settings.learning_rate}
    ]
    if heads is not None:
        groups.append({"params": list(heads.parameters()), "lr": method.mtp_heads.learning_rate})
    optimizer = torch.optim.AdamW(groups, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def make_scaler(settings: Training) -> torch.amp.GradScaler:
    """The gradient scaler against underflow in float16; it is disabled for other data types."""
    return torch.amp.GradScaler(device().type, enabled=settings.compute == "float16")
