"""Experiments with a reference: one part differs, and steps and samples are equal."""

from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.study import Study
from policygrain.study.comparable import check_comparisons, check_tuning, different_parts, pairs
from policygrain.study.runs import Arm

from ..support.small import SMALL, small_study, write_study

METHODS: dict[str, Any] = {
    "none": {"base": "grpo", "ratio": "none", "clip": None},
    "token": {"base": "grpo", "clip": None},
    "token_clip": {"base": "grpo", "clip": {"low": 0.1, "high": 0.1}},
    "sequence": {"base": "token", "ratio": "sequence", "label": "its own name", "summary": "S", "source": "ours"},
    "dynamic": {"base": "token", "sampler": {"dynamic": True}},
    "with_kl": {"base": "token_clip", "penalties": ["kl"]},
}


def experiment(methods: list[str], reference: str | None, seeds: tuple[int, ...] = (0, 1), **more: Any) -> Study:
    section = {"methods": methods, "reference": reference, **more}
    return small_study(methods=METHODS, experiments={"map": section}, seeds=list(seeds))


@pytest.mark.parametrize(
    ("one", "other", "parts"),
    [
        ("none", "token", ["ratio"]),
        ("token", "token_clip", ["clip"]),
        ("none", "token_clip", ["ratio", "clip"]),
        ("token", "dynamic", ["sampler"]),
        ("none", "with_kl", ["ratio", "clip", "penalties"]),
        ("token", "token", []),
        ("token", "sequence", ["ratio"]),
    ],
)
def test_parts_that_differ(one, other, parts):
    study = experiment(["token"], None)
    assert different_parts(Arm(one).method(study), Arm(other).method(study)) == parts


def test_each_arm_is_paired_with_the_reference_at_its_own_settings():
    study = experiment(["none", "token", "token_clip"], "none", vary={"off_policy_steps": [0, 2]})
    check_comparisons(study)
    assert [(p.arm.name, p.reference.name) for p in pairs(study)] == [
        ("token", "none"),
        ("token+off_policy_steps=2", "none+off_policy_steps=2"),
        ("token_clip", "none"),
        ("token_clip+off_policy_steps=2", "none+off_policy_steps=2"),
        ("none+off_policy_steps=2", "none"),
    ]


def test_other_pairs_are_compared_at_each_setting():
    more: dict[str, Any] = {"compare": [["sequence", "token_clip"]], "margin": 1.0}
    study = experiment(["token", "token_clip", "sequence"], None, vary={"off_policy_steps": [1, 2]}, **more)
    check_comparisons(study)
    assert [(p.arm.name, p.reference.name, p.margin) for p in pairs(study)] == [
        (f"sequence+off_policy_steps={steps}", f"token_clip+off_policy_steps={steps}", 1.0) for steps in (1, 2)
    ]


@pytest.mark.parametrize(
    ("experiments", "expected"),
    [
        ({"e": {"methods": ["grpo", "dapo", "pairs", "more"]}}, ["pairs dapo", "more pairs"]),
        ({"e": {"methods": ["dapo", "more"]}}, ["more dapo"]),
        ({"e": {"methods": ["grpo", "more"]}}, []),
        (
            {"e": {"methods": ["dapo", "pairs"], "vary": {"updates_per_batch": [1, 2]}}},
            ["pairs+updates_per_batch=1 dapo+updates_per_batch=1", "pairs dapo"],
        ),
        # The base alone has other settings.
        ({"e": {"methods": ["pairs"]}, "f": {"methods": ["dapo"], "vary": {"updates_per_batch": [1]}}}, []),
    ],
)
def test_an_own_method_is_compared_with_the_nearest_base_that_is_trained(experiments, expected):
    own = {"pairs": {"base": "dapo", "clip": {"low": 0.1}}, "more": {"base": "pairs", "clip": {"low": 0.2}}}
    found = pairs(small_study(methods=own, experiments=experiments))
    assert all(pair.whole for pair in found)
    assert [f"{pair.arm.name} {pair.reference.name}" for pair in found] == expected


@pytest.mark.parametrize(
    ("methods", "reference", "more", "says"),
    [
        (["dynamic", "with_kl"], "token", {}, r"'with_kl' differs from 'token' in clip and penalties.*rule 1"),
        (["sequence"], "tokn", {}, r"experiments\.map\.reference: 'tokn' is not one of.*Did you mean 'token'"),
        (["sequence"], "token", {"vary": {"updates_per_batch": [1, 2]}}, r"vary\.updates_per_batch changes .*rule 2"),
        (["sequence"], "token", {"vary": {"steps": [2, 4]}}, "rule 2"),
        (["sequence"], "token", {"vary": {"epochs": [1, 2]}}, r"vary\.epochs changes the number.*rule 2"),
        (["none"], "token", {"seeds": (0,)}, r"map\.reference: .*one seed \(seeds: \[0\]\).*rule 8 of docs/statistics"),
    ],
)
def test_a_comparison_that_breaks_a_rule_is_refused(methods, reference, more, says):
    with pytest.raises(UserError, match=says):
        check_comparisons(experiment(["token", *methods], reference, **more))
    if "seeds" in more:
        check_comparisons(experiment(["token", *methods], None, **more))


@pytest.mark.parametrize(
    ("chose", "message"),
    [
        ({}, None),
        ({"data": SMALL["data"]}, r"data\.seed: 1 makes the same problems \(count\) for this study and .*ranges\.yaml"),
        ({"data": {**SMALL["data"], "train": ["largest"]}}, None),
        ({"seeds": [7, 1]}, r"seeds: training seeds 1 belong to both this study and "),
        ({"experiments": {"a": {"methods": ["grpo"], "seeds": [0, 9]}}}, r"seeds: training seeds 0 belong"),
        ({"experiments": {"a": {"methods": ["grpo"], "seeds": [9]}}, "seeds": [1]}, r"seeds: initial models 1 belong"),
    ],
)
def test_settings_are_chosen_on_problems_seeds_and_start_models_that_judge_nothing(chose, message, tmp_path):
    other = {**SMALL, "name": "ranges", "seeds": [5, 6], "data": {**SMALL["data"], "seed": 2}, **chose}
    path = write_study(tmp_path / "ranges.yaml", other)
    study = small_study(seeds=[0, 1], tuned_on=[str(path)])
    if message is None:
        check_tuning(study)
    else:
        with pytest.raises(UserError, match=rf"{message}.*rule 4 of docs/statistics\.md"):
            check_tuning(study)
    path.unlink()
    with pytest.raises(UserError, match=r"tuned_on: .*ranges\.yaml: no such study file"):
        check_tuning(study)
