"""Records of measurements: estimators, rounds, exact cases and the map of regimes; tables of the first two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from .records import Entry, Record

if TYPE_CHECKING:
    import pandas as pd

Measured = tuple[float, float, float]  # a value with its 95% interval
EARLIER = ("adam_cosine", "entropy_direction", "penalty_share")  # columns of estimators in records of earlier versions


class Measurement(Record):
    """A measurement on the initial model of a seed."""

    seed: int
    settings: dict[str, Any]
    made_from: str = ""  # digest of the initial model and the problems
    commit: str | None = None  # as in `Environment`; None in records that are older than this entry
    reference: str


class EstimatorRow(Entry):
    """One gradient estimator, on one policy at one distance.

    Intervals are over batches of this policy (jackknife). Formulas: docs/estimators.md.
    """

    steps: int  # of training before the rollouts were sampled
    updates: int  # optimizer steps between the policy that sampled and the one that is updated
    estimator: str  # name of the method
    bias_cosine: Measured  # cosine of the mean update with the true gradient
    length: Measured  # length of the mean update along the true gradient, in units of the true gradient
    snr: Measured  # signal-to-noise ratio of a batch: |E ĝ|² / tr Cov ĝ
    cosine: Measured  # mean cosine of one batch's update with the true gradient
    norm: Measured  # root mean square norm of a batch's update
    cosine_difference: Measured  # to the reference, on the same batches
    clip_fraction: float  # share of tokens without gradient because of the clip
    ratio_variance: float
    effective_sample_share: float

    @model_validator(mode="before")
    @classmethod
    def _earlier(cls, row: Any) -> Any:
        """Without columns that records of earlier versions have."""
        return {k: v for k, v in row.items() if k not in EARLIER} if isinstance(row, dict) else row


class EstimatorsRecord(Measurement):
    """`estimators/seedS.json`: gradient estimators measured on the initial model of a seed."""

    accuracy: dict[str, float]  # "steps/updates" → accuracy of the fresh responses
    batches: int
    true_responses: int
    responses_per_batch: int
    seconds: float
    rows: list[EstimatorRow]
    notes: list[str]  # warnings


class RoundRow(Entry):
    """The policy after some updates by one method from one pool of rollouts."""

    steps: int  # of training before the rollouts were sampled
    pool: int
    method: str
    updates: int
    reward: float  # accuracy of samples on validation problems, 0 to 1
    before: float  # accuracy on the same problems with the same sampling seeds, before the round
    clip_fraction: float  # mean over the updates so far
    gradient_norm: float
    kl_old: float  # of the last update
    entropy: float  # of the last update's minibatch, before this update
    # Mean entropy per token on all responses of the pool, the same states for all methods. Only in the last row of a
    # round; records of older versions have none.
    pool_entropy: float | None = None
    pool_entropy_before: float | None = None


class RoundsRecord(Measurement):
    """`rounds/seedS.json`: one round by each method, from the initial model of a seed."""

    before: dict[str, float]  # "steps" → reward before the round, with the same validation seeds
    responses_per_update: int
    validation_responses: int
    seconds: float
    rows: list[RoundRow]


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


def measurement_table(records: Sequence[EstimatorsRecord | RoundsRecord]) -> pd.DataFrame:
    """One row per initial model (`seed`) and row of its record; intervals are in columns NAME_low and NAME_high."""
    import pandas as pd

    rows = []
    for record in records:
        for row in record.rows:
            flat: dict[str, Any] = {"seed": record.seed}
            for key, value in row:
                if isinstance(value, tuple):
                    flat |= zip((key, f"{key}_low", f"{key}_high"), value, strict=True)
                else:
                    flat[key] = value
            rows.append(flat)
    return pd.DataFrame(rows)
