"""Cost estimates of whole studies."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.model import unembedding
from policygrain.plan import loads
from policygrain.plan.devices import read_constants
from policygrain.plan.estimate import CHECKPOINTS, estimate, jobs_of, makespan
from policygrain.plan.work import SEQUENCES
from policygrain.rollout.vllm_engine import MAX_SEQUENCES
from policygrain.study import Study
from policygrain.study.schema import Model
from policygrain.train.checkpoint import KEEP

from ..support.small import small_study


def test_the_makespan_of_parallel_jobs() -> None:
    assert makespan([3, 1, 2], 1) == 6 and makespan([3, 1, 2], 2) == 3 and makespan([3, 1, 2], 9) == 3


def training_estimate(study: Study, **changes: Any) -> dict[str, Any]:
    """Estimate for ``study`` with other training settings on the device `cpu`."""
    training = study.training.model_copy(update=changes)
    return estimate(study.model_copy(update={"training": training}), read_constants(), "cpu")


def test_tokens_are_proportional_to_steps_and_larger_settings_cost_more() -> None:
    study = small_study()
    once, twice = (
        training_estimate(study, validate_every=1000),
        training_estimate(study, validate_every=1000, steps=2 * study.training.steps),
    )
    (one,), (two,) = ([r for r in b["rules"] if r["rule"] == "train"] for b in (once, twice))
    assert two["tokens_trained"] == 2 * one["tokens_trained"] == 2 * 4 * 16 * 12
    validation = 2 * 10 * 12
    assert two["tokens_sampled"] - validation == 2 * (one["tokens_sampled"] - validation)
    again = training_estimate(study, validate_every=1000, epochs=2)
    (passed,) = (r for r in again["rules"] if r["rule"] == "train")
    assert (passed["tokens_trained"], passed["tokens_sampled"]) == (2 * one["tokens_trained"], one["tokens_sampled"])
    assert once["total"]["device_hours"] < again["total"]["device_hours"] < twice["total"]["device_hours"]
    hours = [
        b["total"]["device_hours"]
        for b in (once, twice, training_estimate(study, steps=8, group=8), training_estimate(study, max_tokens=8))
    ]
    assert hours[3] < hours[0] < hours[1] < hours[2]
    paper_study, constants = (
        small_study(model={"start": "Qwen/Qwen2.5-0.5B"}, training={"trainer": "trl"}),
        read_constants(),
    )
    costs = [
        estimate(paper_study.model_copy(update={"model": Model(start=name)}), constants, "h100", per_run=8)
        for name in ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-7B")
    ]
    for value in ("device_hours", "memory"):
        numbers = [c["total"][value] if value in c["total"] else c[value]["total"] for c in costs]
        assert numbers == sorted(numbers) and numbers[0] < numbers[-1]


def test_the_trainer_of_one_process_has_one_device_per_run() -> None:
    with pytest.raises(UserError, match=r"--per-run: training\.trainer policygrain has one device per run"):
        estimate(small_study(), read_constants(), "h100", per_run=2)
    too_large = small_study(model={"start": "Qwen/Qwen2.5-7B"})
    found = estimate(too_large, read_constants(), "h100", gpus=8)
    assert (found["devices_per_run"], found["fits"]) == (1, False)


MEASURED = {"methods": ["grpo", "tepo"], "reference": "grpo", "starts": 1, "steps": [1, 2], "updates": [1, 3]}


def test_estimators_and_rounds_are_a_job_per_start_model_with_known_tokens() -> None:
    """Responses have 12 tokens at most, groups 4 responses, batches 4 prompts; there are 10 validation problems."""
    estimators = MEASURED | {"prompts_per_update": 2, "batches": 5, "true_prompts": 7}
    rounds = MEASURED | {"pools": 3, "prompts_per_update": 2, "samples": 2}
    study = small_study(seeds=[0, 1, 2], model={"starts": 2}, estimators=estimators, rounds=rounds)
    found = {rule["rule"]: rule for rule in estimate(study, read_constants(), "cpu")["rules"]}
    assert [found[name]["jobs"] for name in ("start_model", "estimators", "rounds")] == [2, 1, 1]
    response, training = 4 * 12, 2 * 4  # tokens per prompt; prompts of the reference's own training
    # At each of two stages: five batches, the way to the third update, and true gradients at two distances.
    sampled = 2 * (5 * 2 + 3 * 2 + 2 * 7)
    assert found["estimators"]["tokens_sampled"] == pytest.approx(response * (training + sampled))
    # Two methods on three pools at each stage, validated by one response per problem, at the end by two; both before.
    validation = (2 * 3 * 2 + 2) * (1 + 2) * 10 * 12
    assert found["rounds"]["tokens_sampled"] == pytest.approx(response * (training + 2 * 3 * 3 * 2) + validation)
    assert found["rounds"]["tokens_trained"] == pytest.approx(response * (training + 2 * 3 * 3 * 2 * 2))
    more = small_study(seeds=[0, 1, 2], model={"starts": 2}, estimators=estimators | {"methods": ["grpo"]})
    (fewer,) = (r for r in estimate(more, read_constants(), "cpu")["rules"] if r["rule"] == "estimators")
    assert fewer["device_hours"] < found["estimators"]["device_hours"]


def test_final_models_that_are_evaluated_after_training_leave_one_job_for_the_start_models() -> None:
    plain = small_study(seeds=[0, 1, 2], controls={"method": "grpo", "worse": "tepo"})
    evaluation = plain.evaluation.model_copy(update={"after_training": True})
    study = plain.model_copy(update={"evaluation": evaluation})
    one, other = (Counter(job.rule for job in jobs_of(s).all) for s in (plain, study))
    assert one["evaluate"] == other["evaluate"] == 1
    assert one["train"] == other["train"] == 3 * 5, "five arms: the headline's one is the baseline of the controls"
    for changed, shards in ((plain, 3), (study, 1)):
        each = changed.evaluation.model_copy(update={"runs_per_engine": 1})
        counted = jobs_of(changed.model_copy(update={"evaluation": each})).all
        assert sum(job.rule == "evaluate" for job in counted) == shards
    totals = [estimate(s, read_constants(), "cpu")["total"]["tokens_sampled"] for s in (plain, study)]
    assert totals[0] == pytest.approx(totals[1])


def test_constants_repeated_here_equal_those_of_trainer_and_engine() -> None:
    """They are repeated so that an estimate imports neither trainer nor engine."""
    assert (unembedding.PLAIN_VOCABULARY, unembedding.BLOCKS["cuda"]) == (loads.PLAIN_VOCABULARY, loads.BLOCK)
    assert SEQUENCES["vllm"] == MAX_SEQUENCES and CHECKPOINTS == KEEP


def test_cost_does_not_import_torch() -> None:
    code = (
        "import sys, policygrain.plan.estimate, policygrain.plan.tables\n"
        "sys.exit(', '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
