"""The sections of a study file on how its claims are decided: estimators, rounds, controls."""

from __future__ import annotations

from .declare import ESTIMATORS, MOST, ROUNDS, RUN_MATRIX, NonNegativeInt, PositiveInt, Section, Seed, Several, key


class Estimators(Section):
    """Measurements of gradient estimators (`policygrain estimators`).

    One record per initial model. A policy is trained for some steps by `reference`; from its rollouts, all estimators
    compute their updates at some distances (optimizer steps by `reference`), and are compared with the true gradient
    there.
    """

    methods: Several[str] = key(
        ESTIMATORS,
        ...,
        "estimators: names of presets or of methods defined under `methods`; their samplers are not used",
    )
    reference: str = key(
        ESTIMATORS, ..., "method that trains the policy; one of `methods`, and the reference of differences"
    )
    starts: PositiveInt | None = key(RUN_MATRIX, None, "number of initial models that are measured, at most; null: all")
    steps: Several[NonNegativeInt] = key(
        ESTIMATORS, [4], "stages of training: numbers of training steps before rollouts are sampled"
    )
    updates: Several[NonNegativeInt] = key(
        ESTIMATORS,
        [4, 16],
        "distances: numbers of optimizer steps between the policy that sampled and the one that is updated",
    )
    prompts_per_update: PositiveInt = key(ESTIMATORS, 3, "prompts in an ordinary batch, of one optimizer step")
    # One is left out at a time, and the squared mean of the rest is estimated: an interval needs three.
    batches: int = key(ESTIMATORS, 100, "number of ordinary batches, the same for all estimators", ge=3, le=MOST)
    true_prompts: int = key(
        ESTIMATORS,
        400,
        "prompts whose fresh responses, sampled at each distance, give the true gradient",
        ge=3,
        le=MOST,
    )


class Rounds(Section):
    """Measurements of one round (`policygrain rounds`).

    One record per initial model. From a policy that `reference` trained for some steps, with its optimizer state, and a
    pool of its rollouts, each method makes the same updates; after some of them the policy is validated.
    """

    methods: Several[str] = key(
        ROUNDS, ..., "names of presets or of methods defined under `methods`; their samplers are not used"
    )
    reference: str = key(
        ROUNDS, ..., "method that trains the policy; one of `methods`, and the reference of differences"
    )
    starts: PositiveInt | None = key(RUN_MATRIX, None, "number of initial models that are measured, at most; null: all")
    steps: Several[NonNegativeInt] = key(
        ROUNDS, [4], "stages of training: numbers of training steps before rollouts are sampled"
    )
    updates: Several[PositiveInt] = key(
        ROUNDS, [1, 2, 4, 8, 16], "numbers of updates after which the policy is validated; the largest ends the round"
    )
    pools: PositiveInt = key(ROUNDS, 2, "pools of rollouts per policy")
    prompts_per_update: PositiveInt = key(ROUNDS, 3, "prompts in a minibatch")
    samples: PositiveInt = key(
        ROUNDS,
        1,
        "responses per validation problem at the end of the round, with the same seeds for all methods; "
        "before the end it is one",
    )


class Controls(Section):
    """Controls: four arms with a known outcome.

    The method with other sampling seeds (must not differ), with rewards shuffled within groups and with a learning rate
    of 0 (must not learn), and a method known to be worse (must be found worse).
    """

    method: str = key(RUN_MATRIX, ..., "method of the controls")
    worse: str = key(RUN_MATRIX, ..., "a method known to be worse, such as one with a poor clip")
    seeds: Several[Seed] | None = key(RUN_MATRIX, None, "seeds of the control runs; null: the seeds of the study")
