"""Records of measurements, estimators and rounds, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .schema import Entry, Record

if TYPE_CHECKING:
    import pandas as pd

Measured = tuple[float, float, float]  # a value with its 95% interval


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
    adam_cosine: Measured  # the same in Adam's metric
    entropy_direction: Measured  # change of entropy per unit step, first order
    norm: Measured  # root mean square norm of a batch's update
    cosine_difference: Measured  # to the reference, on the same batches
    clip_fraction: float  # share of tokens without gradient because of the clip
    ratio_variance: float
    effective_sample_share: float
    penalty_share: float  # norm of the penalties' gradient over that of the whole loss; 0 without penalties


class EstimatorsRecord(Measurement):
    """`estimators/seedS.json`: gradient estimators measured on the initial model of a seed."""

    accuracy: dict[str, float]  # "steps/updates" → accuracy of the fresh responses
    batches: int
    true_responses: int
    responses_per_batch: int
    seconds: float
    rows: list[EstimatorRow]
    notes: list[str]  # warnings, such as a penalty that carries the norm


class RoundRow(Entry):
    """The policy after some updates by one method from one pool of rollouts."""

    steps: int  # of training before the rollouts were sampled
    pool: int
    method: str
    updates: int
    reward: float  # accuracy of samples on validation problems, 0 to 1
    before: float  # that of the same problems and sampling seeds before the round
    clip_fraction: float  # mean over the updates so far
    gradient_norm: float
    kl_old: float  # of the last update
    entropy: float  # of the last update's minibatch, before it
    # Mean entropy per token on all responses of the pool, the same states for all methods. Of the last row of a round;
    # records of older versions have none.
    pool_entropy: float | None = None
    pool_entropy_before: float | None = None


class RoundsRecord(Measurement):
    """`rounds/seedS.json`: one round by each method, from the initial model of a seed."""

    before: dict[str, float]  # "steps" → reward before the round, with the same validation seeds
    responses_per_update: int
    validation_responses: int
    seconds: float
    rows: list[RoundRow]


def estimator_table(records: Sequence[EstimatorsRecord]) -> pd.DataFrame:
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


def round_table(records: Sequence[RoundsRecord]) -> pd.DataFrame:
    """One row per initial model (`seed`) and row of its record."""
    import pandas as pd

    return pd.DataFrame([{"seed": record.seed, **row.model_dump()} for record in records for row in record.rows])
