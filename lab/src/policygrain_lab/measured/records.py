"""Records of measurements of initial models: estimators and rounds."""

from __future__ import annotations

from typing import Any

from policygrain.records import Entry, Record

Measured = tuple[float, float, float]  # a value with its 95% interval


class Measurement(Record):
    """A measurement on the initial model of a seed."""

    seed: int
    settings: dict[str, Any]  # options, and the methods with all their keys
    made_from: str  # digest of the initial model and the problems
    commit: str  # as in `Environment`
    reference: str
    seconds: float


class EstimatorRow(Entry):
    """One gradient estimator, on one policy at one distance.

    Intervals are over batches of this policy (jackknife). Formulas: quality.py.
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


class EstimatorsRecord(Measurement):
    """`lab/estimators-seedS.json`: gradient estimators measured on the initial model of a seed."""

    accuracy: dict[str, float]  # "steps/updates" → accuracy of the fresh responses
    batches: int
    true_responses: int
    responses_per_batch: int
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
    # Mean entropy per token on all responses of the pool, the same states for all methods; only in the last row.
    pool_entropy: float | None = None
    pool_entropy_before: float | None = None


class RoundsRecord(Measurement):
    """`lab/rounds-seedS.json`: one round by each method, from the initial model of a seed."""

    before: dict[str, float]  # "steps" → reward before the round, with the same validation seeds
    responses_per_update: int
    validation_responses: int
    rows: list[RoundRow]
