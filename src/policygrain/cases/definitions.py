"""The cases and the estimators that are compared on them, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ..objective import Method, method
from ..objective.clip import NoClip, PpoClip
from ..objective.part import Part
from ..objective.ratio import Block, NoRatio, PrefixRatio, ProductRatio, SequenceRatio, TokenRatio

Knob = Literal["first", "updates_per_batch", "drift", "mismatch"]
BATCH = 24  # responses of an update, and of the batch whose cosine is measured
UPDATES = 96
STEP = 0.1  # length of each update in logits, so that the scale of a ratio does not act as a learning rate
NO_CLIP, BAND = NoClip(), PpoClip(low=0.2, high=0.28)


@dataclass(frozen=True)
class Case:
    """A policy, how the one that samples for it differs, and what theory predicts."""

    name: str
    title: str
    prediction: str
    order: str  # the prediction as a formula
    p_x2: float  # present probability of x2 = 1 after x1 = 1, where the expected update is measured
    old_p_x2: float  # that of the behaviour policy; training starts here
    updates_per_batch: int = 1
    drift: float = 0.0  # sd of the difference of the behaviour policy's logits on irrelevant tokens
    mismatch: float = 0.0  # sd of the noise on each recorded log-probability
    first: int = 2  # place of x1, counted from 0; x2 follows it
    dose: Knob = "first"  # which of these is varied …
    doses: tuple[float, ...] = ()  # … over these values
    p_x1: float = 0.5
    irrelevant: int = 6

    @property
    def tokens(self) -> int:
        """Tokens of a response."""
        return 2 + self.irrelevant

    def at(self, dose: float) -> Case:
        """The same case with another value of what is varied."""
        return replace(self, **{self.dose: type(getattr(self, self.dose))(dose)})

    @property
    def is_random(self) -> bool:
        """Whether the behaviour policy or the recorded log-probabilities are random."""
        return self.drift > 0 or self.mismatch > 0


@dataclass(frozen=True)
class Estimator:
    """A ratio with or without a clip; aggregation is the mean over tokens, the advantage reward minus mean."""

    name: str
    ratio: Part
    clip: Part = NO_CLIP

    @property
    def is_clipped(self) -> bool:
        """Whether it has a clip."""
        return not isinstance(self.clip, NoClip)

    @cached_property
    def method(self) -> Method:
        """The method that computes it."""
        parts = {"ratio": self.ratio, "clip": self.clip}
        return method("reinforce", advantage="dr_grpo", **{k: part.data() for k, part in parts.items()})


CASES = (
    Case(
        "on_policy",
        "On-policy",
        "All ratios are 1, so all estimators whose tokens have equal weight tie exactly, wherever the decision is.",
        "equal, where all tokens have equal weight",
        p_x2=0.15,
        old_p_x2=0.15,
        dose="first",
        doses=(0, 2, 4, 6),
    ),
    Case(
        "coordination",
        "Coordination under staleness",
        "The value of x1 depends on x2, which the behaviour policy chose otherwise. Only ratios that contain both "
        "tokens push x1 the right way: joint block above token; the product also, with more variance.",
        "joint block > token",
        p_x2=0.6,
        old_p_x2=0.15,
        updates_per_batch=16,
        dose="updates_per_batch",
        doses=(1, 2, 4, 8, 16),
    ),
    Case(
        "irrelevant_drift",
        "Irrelevant tokens that drifted",
        "The decision has not moved, irrelevant tokens have. Their ratios are noise in a product over the response: "
        "token above product.",
        "token > product",
        p_x2=0.6,
        old_p_x2=0.6,
        drift=1.0,
        dose="drift",
        doses=(0.0, 0.25, 0.5, 1.0, 1.5),
    ),
    Case(
        "mismatch",
        "Train–inference mismatch",
        "Recorded log-probabilities have independent noise. A geometric mean averages it, a product adds it up: "
        "sequence above token above joint block above product.",
        "sequence > token > joint block > product",
        p_x2=0.6,
        old_p_x2=0.6,
        mismatch=0.5,
        dose="mismatch",
        doses=(0.01, 0.1, 0.25, 0.5, 1.0),
    ),
)


def _joint(size: int) -> Block:
    return Block(size=size, layout="tiled", weights="joint", edges="normalised")


RATIOS: dict[str, Part] = {
    "none": NoRatio(),
    "token": TokenRatio(),
    "MPO block, K=5": Block(),
    "MPO block, K=5, normalised": Block(edges="normalised"),
    "joint block, K=2": _joint(2),
    "joint block, K=4": _joint(4),
    "sequence": SequenceRatio(),
    "prefix": PrefixRatio(),
    "prefix, own gradient": PrefixRatio(gradient="own"),
    "product": ProductRatio(),
    "product, cap 2": ProductRatio(cap=2.0),
}
# Differences are to this one.
BASELINE = "token"
# Their tokens do not have equal weight on-policy, so they do not tie with the others there.
UNEQUAL_WEIGHTS = ("MPO block, K=5", "prefix")


def estimators(clips: Sequence[Part] = (NO_CLIP, BAND)) -> list[Estimator]:
    """Every ratio with every one of these clips."""
    return [Estimator(name, ratio, clip) for clip in clips for name, ratio in RATIOS.items()]
