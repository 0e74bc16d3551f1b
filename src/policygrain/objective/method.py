"""A method: a ratio, a clip, an aggregation and other parts. Importing it does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..settings import Settings, setting
from .advantage import Advantage, Grpo
from .aggregate import Aggregation, TokenMean
from .clip import Clip, NoClip
from .part import Custom, Need, Part
from .penalty import EntropySignal, Kl, Penalty
from .ratio import Ratio, TokenRatio

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import StepTotals, TokenBatch
    from .loss import LossOutput

TEXTS = ("label", "summary", "source")  # keys of a method that change no result
# Key of a method → name → class, of the parts that it accepts besides custom functions.
CHOICES: dict[str, dict[str, type[Part]]] = {
    "advantage": Advantage.choices,
    "ratio": Ratio.choices,
    "clip": Clip.choices,
    "aggregation": Aggregation.choices,
    "penalties": Penalty.choices,
}


@dataclass(frozen=True, kw_only=True)
class Sampler(Settings):
    """What happens between sampling and the loss (DAPO, arXiv 2503.14476, sections 3.2 and 3.4)."""

    dynamic: bool = setting(
        False,
        description="dynamic sampling: drop groups with equal rewards and sample new prompts until the batch is full",
    )
    oversample: float = setting(
        2.0,
        ge=1,
        le=100,
        description="prompts sampled per missing prompt; one large round of sampling is cheaper than "
        "several small ones",
    )
    max_batches: int = setting(
        4, ge=1, le=1000, description="dynamic sampling stops after this many batches of prompts"
    )
    overlong_buffer: float = setting(
        0.0,
        ge=0,
        le=1,
        description="size of the overlong buffer as a share of max_tokens; responses that end in it "
        "lose up to 1 of reward; 0: off",
    )
    mask_truncated: bool = setting(
        False, description="exclude responses without an end-of-sequence token from the loss"
    )
    correction_cap: float | None = setting(
        None, gt=0, description="cap C of the importance weights between engine and trainer; null: no correction"
    )
    correction_floor: float = setting(0.0, ge=0, later=True, description="smallest weight of that correction")
    correction_grain: Literal["token", "sequence", "geometric"] = setting(
        "token",
        later=True,
        description="weights of each token, of the product over the response, or of its geometric mean",
    )
    correction_outside: Literal["truncate", "mask"] = setting(
        "truncate", later=True, description="weights beyond floor and cap are truncated; mask: they are 0"
    )

    def conflict(self) -> str:
        """The floor must not be above the cap."""
        wrong = self.correction_cap is not None and self.correction_floor > self.correction_cap
        return "correction_floor must not be above correction_cap." if wrong else ""


@dataclass(frozen=True, kw_only=True)
class MtpHeads(Settings):
    """Multi-token prediction heads, where the ratio has `future: mtp_heads` (our reading of MPO's published form)."""

    warmup_batches: int = setting(
        8, ge=0, le=100_000, description="batches that the heads are trained on before the first step"
    )
    learning_rate: float = setting(
        3e-3, ge=0, le=1, description="learning rate of AdamW for the heads, during and after warm-up"
    )
    loss_weight: float = setting(
        1.0, ge=0, description="weight of the heads' cross-entropy in the loss; 0: the objective alone"
    )


@dataclass(frozen=True, kw_only=True)
class Method(Settings):
    """A ratio, a clip, an aggregation, penalties, an advantage and a sampler. The first computation imports torch."""

    name: str
    label: str = setting(
        "", later=True, description="its name in figures and tables, such as `TEPO, full KL`; default: from its key"
    )
    summary: str = setting("", description="one line for lists")
    source: str = setting("", description="paper or other origin")
    advantage: Advantage | Custom = setting(Grpo(), description="advantage over the group")
    ratio: Ratio | Custom = setting(TokenRatio(), description="importance ratio (its grain), with its parameters")
    clip: Clip | Custom = setting(
        NoClip(), description="null: no clip; {low, high, dual}: PPO's clip; or a name, with its parameters"
    )
    aggregation: Aggregation | Custom = setting(TokenMean(), description="how token losses are averaged")
    penalties: tuple[Penalty | Custom, ...] = setting(
        (), description="replaces the list of the base; names, with their parameters"
    )
    sampler: Sampler = setting(Sampler(), description="dynamic sampling, overlong and truncated responses")
    mtp_heads: MtpHeads = setting(MtpHeads(), description="prediction heads, for a block ratio with future: mtp_heads")
    off_policy_bound: float | None = setting(
        None,
        later=True,
        ge=0,
        description="δ of the off-policy sequence mask: responses with a negative advantage whose tokens have become "
        "less likely by more than this on average, in nats, are masked; null: no mask",
    )

    def parts(self) -> dict[str, Part]:
        """The parts by their keys."""
        penalties = {f"penalties[{i}]": part for i, part in enumerate(self.penalties)}
        slots = {"advantage": self.advantage, "ratio": self.ratio, "clip": self.clip, "aggregation": self.aggregation}
        return {**slots, **penalties}

    def data(self) -> dict[str, Any]:
        """The method as in YAML, with all defaults, as records of runs contain it."""
        unused = {"name"} if self.n_mtp_heads else {"name", "mtp_heads"}
        return {key: value for key, value in super().data().items() if key not in unused}

    @property
    def needs(self) -> frozenset[Need]:
        """What the trainer must provide. Imports custom functions."""
        return frozenset[Need]().union(*(part.needs for part in self.parts().values()))

    @property
    def entropy_signal(self) -> EntropySignal:
        """How TEPO's mask, in the loss or only in the metrics, detects falling entropy."""
        return next((part.entropy_signal for part in self.penalties if isinstance(part, Kl)), "auto")

    def with_entropies(self) -> Method:
        """The method with the entropy signal `measured` for `auto`, for trainers that compute entropies."""
        measured = [
            replace(part, entropy_signal="measured") if isinstance(part, Kl) and part.entropy_signal == "auto" else part
            for part in self.penalties
        ]
        return replace(self, penalties=tuple(measured))

    @property
    def n_mtp_heads(self) -> int:
        """How many tokens after the next one are predicted by heads."""
        return self.ratio.n_mtp_heads

    def step_of(self, batch: TokenBatch) -> TokenBatch | StepTotals:
        """Step context of the micro-batches of ``batch``: its totals, or ``batch`` if the method reads its tensors."""
        return batch if "step_log_probs" in self.needs else batch.totals

    def advantages(self, rewards: Tensor) -> Tensor:
        """Rewards [prompts, group] → advantages [prompts, group]."""
        return self.advantage(rewards)

    def loss(self, batch: TokenBatch) -> LossOutput:
        """The objective on a batch: a scalar loss with gradient, and metrics."""
        from .loss import policy_loss

        return policy_loss(self, batch)

    def view(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Tensors per token: `ratio`, `clipped_low`, `clipped_high`, `entropy_drop`. [batch, tokens]."""
        from .loss import view

        return view(self, batch)

    def check(self) -> None:
        """Import custom functions and run the method on a small example. UserError names the key.

        Without custom functions, types have checked everything already, and nothing is imported.
        """
        if any(isinstance(part, Custom) for part in self.parts().values()):
            from .check import check

            check(self)
