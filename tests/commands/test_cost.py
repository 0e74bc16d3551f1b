"""Cost estimates of whole studies, and what `policygrain plan` prints."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policygrain.cli import main
from policygrain.commands.cost import Device, Expected, Tokens, Work, constants, estimate, hours_of, jobs_of
from policygrain.commands.shapes import Shape, shape_of
from policygrain.errors import UserError
from policygrain.study import Study
from policygrain.study.load import load_recorded_study
from policygrain.study.schema import Model

from ..support.small import small_study


def train(study: Study, **changes: Any) -> dict[str, Any]:
    """The cost of training ``study`` with other training settings on the device `cpu`."""
    training = study.training.model_copy(update={"validate_every": 1000, **changes})
    rules = estimate(study.model_copy(update={"training": training}), "cpu")["rules"]
    return next(rule for rule in rules if rule["rule"] == "train")


def test_tokens_and_hours_by_hand() -> None:
    """Four batches of 4 prompts and 16 responses of 12 tokens; 10 validation problems before and after them.

    Each batch is scored by the policy, and a quarter of it by the reference policy, for the metric `kl_initial`.
    """
    study = small_study()
    texts = 4 * 26.4 + 16 * 12
    one = train(study)
    assert one["sampled"] == 4 * 16 * 12 + 2 * 10 * 12
    assert (one["scored"], one["trained"]) == pytest.approx((5 * texts, 4 * texts))
    twice = train(study, epochs=2)
    assert twice["trained"] == pytest.approx(2 * one["trained"]) and twice["sampled"] == one["sampled"]
    # N = 180: 2N FLOPs a token sampled or scored, 6N a token trained on.
    shape = Shape(hidden=4, intermediate=6, layers=1, heads=2, kv_heads=1, vocabulary=10, tied=False)
    device = Device("", measured=False, memory=1, start=0, sample=10.0, train=20.0, source="")
    flops = 2 * 180 * 7 / 10 + (2 * 180 * 5 + 6 * 180 * 3) / 20
    assert hours_of(Tokens(7, 5, 3), shape, study, device) == pytest.approx(flops / 3600)


def test_larger_models_cost_more() -> None:
    study = small_study(model={"start": "Qwen/Qwen2.5-0.5B"}, training={"trainer": "trl"})
    costs = [
        estimate(study.model_copy(update={"model": Model(start=name)}), "h100", per_run=8)
        for name in ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-7B")
    ]
    for numbers in ([c["total"]["device_hours"] for c in costs], [c["memory"]["total"] for c in costs]):
        assert numbers == sorted(numbers) and numbers[0] < numbers[-1]


def test_the_trainer_of_one_process_has_one_device_per_run() -> None:
    with pytest.raises(UserError, match=r"--per-run: training\.trainer policygrain uses one device per run"):
        estimate(small_study(), "h100", per_run=2)
    for option, key in (("gpus", "--gpus"), ("per_run", "--per-run")):
        for count in (0, -1):
            with pytest.raises(UserError, match=f"{key}: {count} is less than 1"):
                estimate(small_study(), "h100", **{option: count})
    too_large = small_study(model={"start": "Qwen/Qwen2.5-7B"})
    found = estimate(too_large, "h100", gpus=8)
    assert (found["devices_per_run"], found["fits"]) == (1, False)


MEASURED = {"methods": ["grpo", "tepo"], "reference": "grpo", "starts": 1, "steps": [1, 2], "updates": [1, 3]}


def test_estimators_and_rounds_are_a_job_per_start_model_with_known_tokens() -> None:
    """Responses have 12 tokens at most, groups 4 responses, batches 4 prompts; there are 10 validation problems."""
    estimators = MEASURED | {"prompts_per_update": 2, "batches": 5, "true_prompts": 7}
    rounds = MEASURED | {"pools": 3, "prompts_per_update": 2, "samples": 2}
    study = small_study(seeds=[0, 1, 2], model={"starts": 2}, estimators=estimators, rounds=rounds)
    found = {rule["rule"]: rule for rule in estimate(study, "cpu")["rules"]}
    assert [found[name]["jobs"] for name in ("start_model", "estimators", "rounds")] == [2, 1, 1]
    response, training = 4 * 12, 2 * 4  # tokens per prompt; prompts of the reference's own training
    text = 26.4 + response
    # At each of two stages: five batches, the way to the third update, and true gradients at two distances.
    sampled = 2 * (5 * 2 + 3 * 2 + 2 * 7)
    assert found["estimators"]["sampled"] == pytest.approx(response * (training + sampled))
    # Five batches forward and, per method, backward; the true gradient; three updates.
    trained = 2 * (2 * (5 * 2 * (1 + 2 * 2) / 3 + 7) + 3 * 2)
    assert found["estimators"]["trained"] == pytest.approx(text * (training + trained))
    # Two methods on three pools at each stage, validated by one response per problem, at the end by two; both before.
    validation = (2 * 3 * 2 + 2) * (1 + 2) * 10 * 12
    assert found["rounds"]["sampled"] == pytest.approx(response * (training + 2 * 3 * 3 * 2) + validation)
    assert found["rounds"]["trained"] == pytest.approx(text * (training + 2 * 3 * 3 * 2 * 2))


def test_final_models_that_are_evaluated_after_training_leave_one_job_for_the_start_models() -> None:
    plain = small_study(seeds=[0, 1, 2])
    evaluation = plain.evaluation.model_copy(update={"after_training": True})
    study = plain.model_copy(update={"evaluation": evaluation})
    one, other = (Counter(job.rule for job in jobs_of(s).all) for s in (plain, study))
    assert one["evaluate"] == other["evaluate"] == 1
    assert one["train"] == other["train"] == 3
    for changed, shards in ((plain, 3), (study, 1)):
        each = changed.evaluation.model_copy(update={"runs_per_engine": 1})
        counted = jobs_of(changed.model_copy(update={"evaluation": each})).all
        assert sum(job.rule == "evaluate" for job in counted) == shards
    totals = [estimate(s, "cpu")["total"]["sampled"] for s in (plain, study)]
    assert totals[0] == pytest.approx(totals[1])


@pytest.mark.parametrize("name", ["laptop", "night", "phase", "phase-old", "turns", "turns-ranges"])
def test_estimates_for_tiny_models_are_within_a_factor_of_two(root: Path, tmp_path: Path, name: str) -> None:
    """Of the seconds that the runs of published studies took; docs/study.md says so."""
    with zipfile.ZipFile(root / "docs" / "records" / f"{name}.zip") as archive:
        (tmp_path / "study.yaml").write_bytes(archive.read("study.yaml"))
        files = [file for file in archive.namelist() if file.endswith("/timings.jsonl")]
        timings = [line for file in files for line in archive.open(file)]
    took = sum(json.loads(line)["seconds/total"] for line in timings)
    study = load_recorded_study(tmp_path / "study.yaml")
    known = constants()
    work, device = Work(study, Expected(**known["workloads"]["tiny"])), Device(**known["devices"]["cpu"])
    matrix, tokens = jobs_of(study).fingerprints.matrix, Tokens()
    for run in matrix.runs:
        tokens = tokens.plus(work.run(matrix.arms[run.arm]))
    seconds = 3600 * hours_of(tokens, shape_of(study.model, known["shapes"]), study, device)
    assert 0.5 < seconds / took < 2


def test_a_plan_names_its_assumptions_and_what_does_not_fit(in_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "studies/tepo-qwen2.5-7b.yaml", "--per-run", "1"]) == 0
    shown = capsys.readouterr().out
    assert "(assumed, not measured)" in shown and shown.count("DOES NOT FIT") == 1
    assert main(["plan", "studies/tepo-qwen2.5-7b.yaml", "--json", "--gpus", "16"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["gpus"] == 16
    assert main(["plan", "config.yaml", "--device", "h1000"]) == 2
    assert "Did you mean 'h100'" in capsys.readouterr().err
