"""The sections of a study file that say how its claims are decided: estimators, rounds, controls, added seeds."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..sections import Section
from .artefacts import ESTIMATORS, INTERIM, ROUNDS, RUN_MATRIX
from .kinds import MOST, NonNegativeInt, PositiveFloat, PositiveInt, Seed, Several

Ledger = Literal["claims", "findings"]
UNITS = {"second": 1 / 60, "minute": 1.0, "hour": 60.0}


def minutes(value: Any) -> Any:
    """`12 minutes`, `1.5 hours` → minutes; a number without a unit is refused."""
    if isinstance(value, float):  # as a resolved study has it
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(second|minute|hour)s?\s*", value) if isinstance(value, str) else None
    if not found:
        raise ValueError("a time is a number and a unit, such as '12 minutes' or '1 hour'")
    return float(found[1]) * UNITS[found[2]]


class Estimators(Section):
    """Measurements of gradient estimators (`policygrain estimators`).

    One record per start model. A policy is trained for some steps by `reference`; from its rollouts, all estimators
    compute their updates at some distances (optimizer steps by `reference`), and are compared with the true gradient
    there.
    """

    methods: Several[str] = Field(
        description="estimators: names of presets or of methods defined under `methods`; their samplers are not used",
        json_schema_extra=ESTIMATORS,
    )
    reference: str = Field(
        description="method that trains the policy and moves it away; one of `methods`, and what differences are to",
        json_schema_extra=ESTIMATORS,
    )
    starts: PositiveInt | None = Field(
        None, description="number of start models that are measured; null: all", json_schema_extra=RUN_MATRIX
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

    One record per start model. From a policy that `reference` trained for some steps, with its optimizer state, and a
    pool of its rollouts, each method makes the same updates; after some of them the policy is validated.
    """

    methods: Several[str] = Field(
        description="names of presets or of methods defined under `methods`; their samplers are not used",
        json_schema_extra=ROUNDS,
    )
    reference: str = Field(
        description="method that trains the policy; one of `methods`, and what differences are to",
        json_schema_extra=ROUNDS,
    )
    starts: PositiveInt | None = Field(
        None, description="number of start models that are measured; null: all", json_schema_extra=RUN_MATRIX
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
    """Controls: four arms whose outcome is known.

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


class Sequential(Section):
    """Seeds are added, in rounds, to the arms of claims that are undecided, until decided, futile or out of budget."""

    ledgers: Several[Ledger] = Field(
        ["claims"],
        description="what seeds are added for: `claims` of the papers; `findings`, this project's own questions, each "
        "comparison for itself",
        json_schema_extra=INTERIM,
    )
    add: int = Field(4, ge=1, le=1000, description="seeds added to an arm in a round", json_schema_extra=INTERIM)
    budget: Annotated[PositiveFloat, BeforeValidator(minutes)] = Field(
        description="time for all training runs with their evaluation, such as '20 minutes', summed over processes: "
        "two processes for 10 minutes are 20",
        json_schema_extra=INTERIM,
    )
    max_rounds: int = Field(
        20,
        ge=0,
        le=1000,
        description="rounds at most; 0: the claims are tested by sequential methods, and no seed is added",
        json_schema_extra=INTERIM,
    )
