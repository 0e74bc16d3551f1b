"""A method: a ratio, a clip, an aggregation and other parts. Importing it does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .advantage import Advantage, Grpo
from .aggregate import Aggregation, TokenMean
from .clip import Clip, NoClip, Vespo
from .part import CONFIG, Custom, Need, Part, setting
from .penalty import EntropySignal, Kl, Penalty
from .ratio import GroupExpectation, Ratio, TokenRatio

if TYPE_CHECKING:
    from .batch import StepTotals, TokenBatch
    from .loss import LossOutput

Anchor = Literal["old", "rollout", "loglinear"]  # the policy in the denominator of the ratio
Grain = Literal["token", "sequence", "geometric", "turn"]  # of a correction
TEXTS = ("base", "label", "summary", "source")  # keys of a method that change no result
# Key of a method → name → class, of the parts that it accepts besides custom functions.
CHOICES: dict[str, dict[str, type[Part]]] = {
    "advantage": Advantage.choices,
    "ratio": Ratio.choices,
    "clip": Clip.choices,
    "aggregation": Aggregation.choices,
    "penalties": Penalty.choices,
}


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Selection, filtering and weights of samples before the loss (DAPO, arXiv 2503.14476, sections 3.2 and 3.4)."""

    __pydantic_config__: ClassVar = CONFIG
    dynamic: bool = setting(
        False, "dynamic sampling: drop groups with equal rewards and sample new prompts until the batch is full"
    )
    oversample: float = setting(
        2.0,
        "prompts sampled per missing prompt; one large round of sampling is cheaper than several small ones",
        ge=1,
        le=100,
    )
    max_batches: int = setting(4, "dynamic sampling stops after this many batches of prompts", ge=1, le=1000)
    overlong_buffer: float = setting(
        0.0,
        "size of the overlong buffer as a share of max_tokens; responses that end in it lose up to 1 of reward; 0: off",
        ge=0,
        le=1,
    )
    mask_truncated: bool = setting(False, "exclude responses without an end-of-sequence token from the loss")
    correction_cap: float | None = setting(
        None, "cap C of the importance weights between engine and trainer; null: no correction", gt=0
    )
    correction_floor: float = setting(0.0, "smallest weight of that correction", ge=0)
    correction_grain: Grain = setting(
        "token",
        "ratios that are the weights: token, of each token; sequence, their product over the response; "
        "geometric, their geometric mean over the response; turn, over the turn",
    )
    correction_outside: Literal["truncate", "mask"] = setting(
        "truncate", "truncate: weights are bounded by floor and cap; mask: weights outside of these are 0"
    )

    rejection_high: float | None = setting(
        None,
        "tokens whose rejection_measure is above this have weight 0, in addition to any correction; null: no rejection",
        gt=0,
    )
    rejection_low: float = setting(0.0, "tokens whose rejection_measure is below this have weight 0", ge=0)
    rejection_grain: Grain = setting("token", "tokens that are measured and rejected together, as in correction_grain")
    rejection_measure: Literal["ratio", "binary_kl"] = setting(
        "ratio",
        "difference between trainer and engine. ratio: π_old/μ; binary_kl: the larger of KL(π_old ‖ μ) and "
        "KL(μ ‖ π_old), of the sampled token against all others",
    )

    @property
    def corrects(self) -> bool:
        """Whether tokens are weighted or rejected by the engine's log-probabilities."""
        return self.correction_cap is not None or self.rejection_high is not None

    def __post_init__(self) -> None:
        for low, high in (("correction_floor", "correction_cap"), ("rejection_low", "rejection_high")):
            if getattr(self, high) is not None and getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low}: must not be above {high}")
        if self.rejection_low and self.rejection_high is None:
            raise ValueError("rejection_low: needs rejection_high")


@dataclass(frozen=True, kw_only=True)
class MtpHeads:
    """Multi-token prediction heads, where the ratio has `future: mtp_heads` (our reading of MPO's published form)."""

    __pydantic_config__: ClassVar = CONFIG
    warmup_batches: int = setting(8, "batches that the heads are trained on before the first step", ge=0, le=100_000)
    learning_rate: float = setting(3e-3, "learning rate of AdamW for the heads, during and after warm-up", ge=0, le=1)
    loss_weight: float = setting(1.0, "weight of the heads' cross-entropy in the loss; 0: the objective alone", ge=0)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A ratio, a clip, an aggregation, penalties, an advantage and a sampler. The first computation imports torch."""

    __pydantic_config__: ClassVar = CONFIG
    name: str
    base: str | None = setting(None, "preset or method of this study that this one changes; null: the defaults")
    label: str = setting("", "its name in figures and tables, such as `TEPO, full KL`; default: from its key")
    summary: str = setting("", "one line for lists")
    source: str = setting("", "paper or other origin")
    advantage: Advantage | Custom = setting(Grpo(), "advantage over the group")
    ratio: Ratio | Custom = setting(TokenRatio(), "importance ratio (its grain), with its parameters")
    clip: Clip | Custom = setting(
        NoClip(), "null: no clip; {low, high, dual}: PPO's clip; or a name, with its parameters"
    )
    aggregation: Aggregation | Custom = setting(TokenMean(), "how token losses are averaged")
    penalties: tuple[Penalty | Custom, ...] = setting(
        (), "names with their parameters; the list replaces that of the base"
    )
    sampler: Sampler = setting(Sampler(), "dynamic sampling, overlong and truncated responses")
    mtp_heads: MtpHeads = setting(MtpHeads(), "prediction heads, for a block ratio with future: mtp_heads")
    off_policy_bound: float | None = setting(
        None,
        "δ of the off-policy sequence mask: responses with a negative advantage whose tokens have become "
        "less likely by more than this on average, in nats, are masked; null: no mask",
        ge=0,
    )

    anchor: Anchor = setting(
        "old",
        "policy in the denominator of the ratio. old: the trainer's policy before the step's updates; "
        "rollout: the engine that sampled, so that the ratio also corrects for the engine (verl's bypass mode); "
        "loglinear: a policy between the engine and the current policy by the age of the rollouts (A-3PO), whose ratio "
        "to the engine is the weight of the correction",
    )

    def __post_init__(self) -> None:
        if self.anchor == "rollout" and self.sampler.correction_cap is not None:
            raise ValueError("anchor: rollout corrects for the engine, and sampler.correction_cap would do so twice")
        if isinstance(self.clip, Vespo) and self.sampler.correction_cap and self.sampler.correction_grain == "sequence":
            raise ValueError("sampler.correction_grain: must not be sequence, as clip vespo weights whole responses")
        if self.anchor != "old" and isinstance(self.ratio, GroupExpectation):
            raise ValueError("anchor: must be old with ratio group_expectation, which reads totals of the old policy")

    def parts(self) -> dict[str, Part]:
        """The parts by their keys."""
        penalties = {f"penalties[{i}]": part for i, part in enumerate(self.penalties)}
        slots = {"advantage": self.advantage, "ratio": self.ratio, "clip": self.clip, "aggregation": self.aggregation}
        return {**slots, **penalties}

    def data(self) -> dict[str, Any]:
        """The method as in YAML, with all defaults, as records of runs contain it."""
        unused = {"name"} if self.n_mtp_heads else {"name", "mtp_heads"}
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in unused}
        return {key: _plain(value) for key, value in rest.items()}

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that the trainer must provide. Imports custom functions."""
        of_anchor: frozenset[Need] = frozenset({"staleness"} if self.anchor == "loglinear" else ())
        return of_anchor.union(*(part.needs for part in self.parts().values()))

    @property
    def entropy_signal(self) -> EntropySignal:
        """Signal of falling entropy for TEPO's mask, in the loss or only in the metrics."""
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
        """Number of tokens after the next one that heads predict."""
        return getattr(self.ratio, "n_mtp_heads", 0)

    def step_of(self, batch: TokenBatch) -> StepTotals:
        """``batch`` as the step of its micro-batches: its totals, and its tensors if the method reads them."""
        return replace(batch.whole, tensors=batch if "step_log_probs" in self.needs else None)

    def loss(self, batch: TokenBatch) -> LossOutput:
        """The objective on a batch: a scalar loss with gradient, and metrics."""
        from .loss import policy_loss

        return policy_loss(self, batch)

    @property
    def custom_functions(self) -> list[str]:
        """The names of the custom functions among the parts; they need not be importable."""
        return [part.name for part in self.parts().values() if isinstance(part, Custom)]

    def check(self) -> None:
        """Import custom functions and run the method on a small example. UserError names the key.

        Methods without custom functions are already checked by their types; nothing is run or imported for them.
        """
        if self.custom_functions:
            from .check import check

            check(self)


def _plain(value: Any) -> Any:
    """A value of a method as in YAML."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Part):
        return value.data()
    return asdict(value) if isinstance(value, Sampler | MtpHeads) else value
