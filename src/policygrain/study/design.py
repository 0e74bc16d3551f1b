"""The sections of a study file on how its claims are decided: estimators, rounds, controls."""

from __future__ import annotations

from pydantic import Field

from ..sections import Section
from .artefacts import ESTIMATORS, ROUNDS, RUN_MATRIX
from .kinds import MOST, NonNegativeInt, PositiveInt, Seed, Several


class Estimators(Section):
    """Measurements of gradient estimators (`policygrain estimators`).

    One record per initial model. A policy is trained for some steps by `reference`; from its rollouts, all estimators
    compute their updates at some distances (optimizer steps by `reference`), and are compared with the true gradient
    there.
    """

    methods: Several[str] = Field(
        description="estimators: names of presets or of methods defined under `methods`; their samplers are not used",
        json_schema_extra=ESTIMATORS,
    )
    reference: str = Field(
        description="method that trains the policy; one of `methods`, and the reference of differences",
        json_schema_extra=ESTIMATORS,
    )
    starts: PositiveInt | None = Field(
        None, description="number of initial models that are measured, at most; null: all", json_schema_extra=RUN_MATRIX
    )
    steps: Several[NonNegativeInt] = Field(
        [4],
        description="stages of training: numbers of training steps before rollouts are sampled",
        json_schema_extra=ESTIMATORS,
    )
    updates: Several[NonNegativeInt] = Field(
        [4, 16],
        description="distances: numbers of optimizer steps between the policy that sampled and the one that is updated",
        json_schema_extra=ESTIMATORS,
    )
    prompts_per_update: PositiveInt = Field(
        3, description="prompts in an ordinary batch, of one optimizer step", json_schema_extra=ESTIMATORS
    )
    # One is left out at a time, and the squared mean of the rest is estimated: an interval needs three.
    batches: int = Field(
        100,
        ge=3,
        le=MOST,
        description="number of ordinary batches, the same for all estimators",
        json_schema_extra=ESTIMATORS,
    )
    true_prompts: int = Field(
        400,
        ge=3,
        le=MOST,
        description="prompts whose fresh responses, sampled at each distance, give the true gradient",
        json_schema_extra=ESTIMATORS,
    )


class Rounds(Section):
    """Measurements of one round (`policygrain rounds`).

    One record per initial model. From a policy that `reference` trained for some steps, with its optimizer state, and a
    pool of its rollouts, each method makes the same updates; after some of them the policy is validated.
    """

    methods: Several[str] = Field(
        description="names of presets or of methods defined under `methods`; their samplers are not used",
        json_schema_extra=ROUNDS,
    )
    reference: str = Field(
        description="method that trains the policy; one of `methods`, and the reference of differences",
        json_schema_extra=ROUNDS,
    )
    starts: PositiveInt | None = Field(
        None, description="number of initial models that are measured, at most; null: all", json_schema_extra=RUN_MATRIX
    )
    steps: Several[NonNegativeInt] = Field(
        [4],
        description="stages of training: numbers of training steps before rollouts are sampled",
        json_schema_extra=ROUNDS,
    )
    updates: Several[PositiveInt] = Field(
        [1, 2, 4, 8, 16],
        description="numbers of updates after which the policy is validated; the largest ends the round",
        json_schema_extra=ROUNDS,
    )
    pools: PositiveInt = Field(2, description="pools of rollouts per policy", json_schema_extra=ROUNDS)
    prompts_per_update: PositiveInt = Field(3, description="prompts in a minibatch", json_schema_extra=ROUNDS)
    samples: PositiveInt = Field(
        1,
        description="responses per validation problem at the end of the round, with the same seeds for all methods; "
        "before the end it is one",
        json_schema_extra=ROUNDS,
    )


class Controls(Section):
    """Controls: four arms with a known outcome.

    The method with other sampling seeds (must not differ), with rewards shuffled within groups and with a learning rate
    of 0 (must not learn), and a method known to be worse (must be found worse).
    """

    method: str = Field(description="method of the controls", json_schema_extra=RUN_MATRIX)
    worse: str = Field(
        description="a method known to be worse, such as one with a poor clip", json_schema_extra=RUN_MATRIX
    )
    seeds: Several[Seed] | None = Field(
        None, description="seeds of the control runs; null: the seeds of the study", json_schema_extra=RUN_MATRIX
    )
