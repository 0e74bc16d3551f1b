"""Method: what a preset or a study's own method says, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError, did_you_mean
from ..objective.batch import TokenBatch
from ..objective.loss import LossOutput, importance, policy_loss
from ..objective.penalty import EntropySignal, entropy_drop_mask
from .parts import Part


@dataclass(frozen=True)
class Sampler:
    """What happens between sampling and the loss (DAPO, arXiv 2503.14476, sections 3.2 and 3.4)."""

    dynamic: bool = False  # drop groups of equal rewards and draw new prompts until the batch is full
    # … at how many prompts for each that is missing: one wider draw is cheaper than several narrow ones, and what turns
    # out to be more than needed is left out.
    oversample: float = field(default=2.0, metadata={"least": 1})
    max_batches: int = field(default=4, metadata={"least": 1})  # … or this many batches were drawn
    overlong_buffer: float = 0.0  # B as a share of L_max: longer responses lose up to 1 of reward; 0: off
    mask_truncated: bool = False  # leave responses without an end of sequence out of the loss
    correction_cap: float | None = None  # C of truncated importance sampling between engine and trainer; null: off


@dataclass(frozen=True)
class Heads:
    """Multi-token prediction heads, where the ratio's `future` is `heads` (our reading of MPO's published form)."""

    warmup_batches: int = field(default=8, metadata={"least": 0})  # batches that they learn from before the first step
    learning_rate: float = 3e-3  # AdamW's, in the warm-up and after
    loss_weight: float = 1.0  # of their cross-entropy beside the objective, which goes on; 0: the objective alone


@dataclass(frozen=True)
class Method:
    """A point in the design space. ``loss`` is the whole of what it computes."""

    name: str
    summary: str = ""
    source: str = ""
    advantage: Part = field(default_factory=lambda: Part("advantage", "grpo"))
    ratio: Part = field(default_factory=lambda: Part("ratio", "token"))
    clip: Part = field(default_factory=lambda: Part("clip", "none"))
    aggregation: Part = field(default_factory=lambda: Part("aggregation", "token_mean"))
    penalties: tuple[Part, ...] = ()
    sampler: Sampler = field(default_factory=Sampler)
    mtp_heads: Heads = field(default_factory=Heads)

    @classmethod
    def parse(cls, name: str, data: Mapping[str, Any], where: str = "") -> Method:
        """From YAML. Raises UserError that names the key."""
        where = where or f"methods.{name}"
        known = {f.name for f in fields(cls)} - {"name"}
        for key in data:
            if key not in known:
                raise UserError(f"{where}.{key}: a method has no key {key!r}.{did_you_mean(key, known)}")
        parsed: dict[str, Any] = {k: str(data[k]) for k in ("summary", "source") if k in data}
        for slot in ("advantage", "ratio", "aggregation"):
            if slot in data:
                parsed[slot] = Part.parse(slot, data[slot], f"{where}.{slot}")
        if "clip" in data:
            clip = data["clip"]
            if clip is None:
                clip = "none"
            elif isinstance(clip, Mapping):
                clip = {"name": "ppo", **clip}
            parsed["clip"] = Part.parse("clip", clip, f"{where}.clip")
        parsed["penalties"] = tuple(
            Part.parse("penalty", p, f"{where}.penalties[{i}]") for i, p in enumerate(data.get("penalties") or ())
        )
        for section, kind in (("sampler", Sampler), ("mtp_heads", Heads)):
            if section in data:
                parsed[section] = _section(kind, data[section] or {}, f"{where}.{section}")
        method = cls(name=name, **parsed)
        try:
            method.loss(_example())
            method.advantages(torch.zeros(2, 2))
        except Exception as error:  # a user's own function may raise anything
            raise UserError(f"{where}: the method does not work on a small example: {error}") from error
        return method

    def data(self) -> dict[str, Any]:
        """Back to YAML, everything spelled out: what a run's record keeps."""
        slots = {slot: getattr(self, slot).data() for slot in ("advantage", "ratio", "clip", "aggregation")}
        penalties = [p.data() for p in self.penalties]
        return {
            "summary": self.summary,
            "source": self.source,
            **slots,
            "penalties": penalties,
            "sampler": vars(self.sampler),
            **({"mtp_heads": vars(self.mtp_heads)} if self.n_mtp_heads else {}),
        }

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards [prompts, group] → advantages [prompts, group]."""
        return self.advantage.function(rewards)

    def loss(self, batch: TokenBatch) -> LossOutput:
        """The objective on a batch: a scalar loss with gradient, and metrics."""
        penalties = [p.function for p in self.penalties]
        parts = self.ratio.function, self.clip.function, self.aggregation.function
        return policy_loss(batch, *parts, penalties, entropy_signal=self.entropy_signal)

    def view(self, batch: TokenBatch) -> dict[str, Tensor]:
        """What it makes of each token: `ratio`, `clipped_low`, `clipped_high`, `entropy_drop`. [batch, tokens]."""
        ratio = importance(batch, self.ratio.function)
        surrogate = self.clip.function(ratio, batch)
        drop = entropy_drop_mask(batch, self.entropy_signal)
        return {"ratio": ratio, "clipped_low": surrogate.low, "clipped_high": surrogate.high, "entropy_drop": drop}

    @property
    def entropy_signal(self) -> EntropySignal:
        """How TEPO's mask, a part of the loss or only of the metrics, tells that entropy falls."""
        signals: list[EntropySignal] = [p.settings["entropy_signal"] for p in self.penalties if p.name == "kl"]
        return signals[0] if signals else "measured"

    @property
    def n_mtp_heads(self) -> int:
        """How many tokens after the next one its ratio foresees by prediction heads."""
        settings = self.ratio.settings
        return int(settings["size"]) - 1 if settings.get("future") == "heads" else 0

    @property
    def needs_reference(self) -> bool:
        """Whether the loss reads log-probabilities of the frozen start policy."""
        return any(p.name == "kl" and p.settings["reference"] == "initial" for p in self.penalties)

    @property
    def reads_whole_step(self) -> bool:
        """Whether a part reads the whole step's current log-probabilities, so that they are computed beforehand."""
        return any(
            part.name in ("clip_cov", "kl_cov") or part.settings.get("entropy_signal") == "covariance"
            for part in (self.clip, *self.penalties)
        )

    @property
    def entropy_has_gradient(self) -> bool:
        """Whether the entropy is part of the loss and not only of the metrics."""
        return any(p.name not in ("kl", "kl_cov") for p in self.penalties)


def _example() -> TokenBatch:
    """Two responses with everything that a part may read: what fails here would fail after hours of sampling."""
    x = torch.tensor([[-0.5, -1.0, -2.0], [-1.5, -0.1, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    more: dict[str, Any] = {"entropy": -x, "old_entropy": -x, "future_log_probs": x, "old_future_log_probs": x}
    return TokenBatch(x, x - 0.1, torch.tensor([1.0, -1.0]), mask, ref_log_probs=x, **more)


def _section(kind: type[Any], data: Mapping[str, Any], where: str) -> Any:
    known = {f.name: f for f in fields(kind)}
    for key, value in data.items():
        if key not in known:
            section = where.rsplit(".", 1)[1]
            raise UserError(f"{where}.{key}: {section} has no key {key!r}.{did_you_mean(key, known)}")
        default = known[key].default
        optional = default is None and value is None
        kinds: tuple[type, ...] = (type(default),) if isinstance(default, bool | int) else (int, float)
        if not optional and (not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool)):
            raise UserError(f"{where}.{key}: {value!r} is not a value it can take (default: {default!r}).")
        if not isinstance(value, bool) and value is not None and value < known[key].metadata.get("least", 0):
            raise UserError(f"{where}.{key}: {value!r} is too small.")
    return kind(**data)
