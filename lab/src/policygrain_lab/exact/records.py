"""Records of exact cases and of the map."""

from __future__ import annotations

from typing import Any

from policygrain.records import Entry, Record

Measured = tuple[float, float, float]  # a value with its 95% interval


class CaseEstimator(Entry):
    """One estimator in one case. Differences are to the token ratio with the same clip, paired over seeds."""

    name: str
    ratio: dict[str, Any]
    clip: tuple[float, float] | None  # widths of the clip range below and above 1
    cosine: float  # of the expected update with the exact gradient
    push: float  # the expected update of the logit of x1
    bias: float  # |expected update − exact gradient| / |exact gradient|
    batch_cosine: Measured  # of updates from single batches with the exact gradient
    difference: Measured  # of the expected reward, averaged over all updates
    doses: list[Measured]  # this difference at each of the case's `doses`; empty with a clip


class CaseRecord(Entry):
    """One case with all estimators."""

    name: str
    title: str
    prediction: str
    order: str  # the prediction as a formula
    settings: dict[str, Any]
    exact_push: float  # the exact gradient with respect to the logit of x1
    dose: str  # the quantity that is varied
    doses: list[float]
    estimators: list[CaseEstimator]

    def of(self, name: str, clipped: bool = False) -> CaseEstimator:
        """The estimator of this name, with or without a clip. KeyError if there is none."""
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
    """One method in one cell of the map.

    ``cosine``, ``bias`` and ``snr`` are measured on the policies of the reference, ``difference`` in its own training.
    """

    name: str
    clip: tuple[float, float] | None
    cosine: Measured  # of the expected estimate with the exact gradient
    bias: Measured  # |expected estimate − exact gradient| / |exact gradient|, of the means over problems
    snr: Measured  # |expected estimate|² / total variance of the estimate from one batch, of the means over problems
    difference: Measured  # of the expected reward, averaged over a run, from that of the reference, in points
    p: float  # p-value of this difference, corrected by Holm's method over the whole map


class MapCell(Entry):
    """One regime. Bias and variance are those of the reference's policy after ``age`` steps."""

    age: int  # of rollouts, in steps
    length: int  # of a response, in tokens
    group: int  # tokens that each part of the reward depends on
    learning_rate: float
    nats: Measured  # KL divergence from the behaviour policy to the present one, per token
    enumerated: int  # problems, the first ones, whose expectations are exact
    area: Measured  # expected reward of the reference, averaged over a run, in percent
    reference: MapMethod
    methods: list[MapMethod]


class MapRecord(Record):
    """`cases_map.json`."""

    commit: str
    seeds: int  # random problems in each cell
    batch: int
    steps: int  # of a run
    cells: list[MapCell]
