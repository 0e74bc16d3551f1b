"""The record of the exact cases: what each estimator does in each of them."""

from __future__ import annotations

from typing import Any

from .schema import Entry, Record

Interval = tuple[float, float, float]  # mean, and the ends of its 95% interval


class CaseEstimator(Entry):
    """One estimator in one case. Differences are to the token ratio with the same clip, paired over seeds."""

    name: str
    ratio: dict[str, Any]
    clip: tuple[float, float] | None  # widths of the band below and above 1
    cosine: float  # of the expected update with the exact gradient
    push: float  # of the expected update on the logit of x1
    bias: float  # |expected update − exact gradient| / |exact gradient|
    batch_cosine: Interval  # of updates from single batches with the exact gradient
    curve: list[float]  # mean expected reward at the case's `updates`
    half_width: list[float]  # half of the 95% interval of each
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
    updates: list[int]
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
    baseline: str  # the ratio that differences are to
    cases: list[CaseRecord]
