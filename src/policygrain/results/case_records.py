"""The record of the exact cases: measurements of each estimator in each case."""

from __future__ import annotations

from typing import Any

from .schema import Entry, Record

Interval = tuple[float, float, float]  # mean, and the ends of its 95% interval


class CaseEstimator(Entry):
    """One estimator in one case. Differences are to the token ratio with the same clip, paired over seeds."""

    name: str
    ratio: dict[str, Any]
    clip: tuple[float, float] | None  # widths of the clip range below and above 1
    cosine: float  # of the expected update with the exact gradient
    push: float  # of the expected update on the logit of x1
    bias: float  # |expected update − exact gradient| / |exact gradient|
    batch_cosine: Interval  # of updates from single batches with the exact gradient
    difference: Interval  # of the expected reward, averaged over all updates
    doses: list[Interval]  # the same at the case's `doses`; empty with a clip


class CaseRecord(Entry):
    """One case with all estimators."""

    name: str
    title: str
    prediction: str
    order: str  # the prediction as a formula
    settings: dict[str, Any]
    exact_push: float  # the exact gradient by the logit of x1
    dose: str  # what is varied
    doses: list[float]
    estimators: list[CaseEstimator]

    def of(self, name: str, clipped: bool = False) -> CaseEstimator:
        """The estimator of this name. KeyError where there is none."""
        for estimator in self.estimators:
            if estimator.name == name and (estimator.clip is not None) == clipped:
                return estimator
        raise KeyError(name)


class CasesRecord(Record):
    """`cases.json`."""

    seeds: int
    batch: int  # responses of an update, and of the batch whose cosine is measured
    step_length: float  # of an update, in logits
    baseline: str  # the reference of differences
    cases: list[CaseRecord]


class MapMethod(Entry):
    """One method in one cell of the map, on the policies of the reference; ``difference`` is of its own training."""

    name: str
    clip: tuple[float, float] | None
    cosine: Interval  # of the expected estimate with the exact gradient
    bias: Interval  # |expected estimate − exact gradient| / |exact gradient|, of the means over problems
    snr: Interval  # |expected estimate|² / total variance of the estimate from one batch, of the means over problems
    difference: Interval  # of the expected reward, mean over a run, to that of the reference, in points
    p: float  # of no such difference, corrected by Holm's method over the whole map


class MapCell(Entry):
    """One regime. Bias and variance are those of the reference's policy after ``age`` steps."""

    age: int  # of rollouts, in steps
    length: int  # of a response, in tokens
    group: int  # how many tokens a part of the reward depends on
    learning_rate: float
    nats: Interval  # KL divergence from the behaviour policy to the present one, per token
    enumerated: int  # problems of the exact expectations: the first ones
    area: Interval  # expected reward of the reference, mean over a run, in percent
    reference: MapMethod
    methods: list[MapMethod]


class Law(Entry):
    """Growth of the relative bias of a method without a clip, over all cells."""

    name: str
    staleness: float  # exponent of age × learning rate, alone
    r2: float
    exponents: dict[str, float]  # of each setting by itself, together
    r2_each: float


class MapRecord(Record):
    """`cases_map.json`."""

    commit: str
    seeds: int  # random problems in each cell
    batch: int
    steps: int  # of a run
    clips: dict[str, dict[str, float]]  # ratio → upper width of each clip that was tried → mean area in points
    cells: list[MapCell]
    laws: list[Law]
