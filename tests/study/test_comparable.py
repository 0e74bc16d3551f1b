"""Experiments with a reference: one part differs, and steps and samples are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
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


def experiment(methods: list[str], reference: str, vary: dict[str, Any] | None = None) -> Any:
    section = {"methods": methods, "reference": reference, "vary": vary or {}}
    return small_study(methods=METHODS, experiments={"map": section}, seeds=[0, 1])


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
def test_parts_that_differ(one: str, other: str, parts: list[str]) -> None:
    study = small_study(methods=METHODS, experiments={"e": {"methods": ["token"]}})
    assert different_parts(Arm(one).method(study), Arm(other).method(study)) == parts


def test_each_arm_is_paired_with_the_reference_at_its_own_settings() -> None:
    study = experiment(["none", "token", "token_clip"], "none", {"off_policy_steps": [0, 2]})
    check_comparisons(study)
    assert [(p.arm.name, p.reference.name) for p in pairs(study)] == [
        ("token", "none"),
        ("token+off_policy_steps=2", "none+off_policy_steps=2"),
        ("token_clip", "none"),
        ("token_clip+off_policy_steps=2", "none+off_policy_steps=2"),
        ("none+off_policy_steps=2", "none"),
    ]


def test_other_pairs_are_compared_at_each_setting() -> None:
    section = {"methods": ["token", "token_clip", "sequence"], "compare": [["sequence", "token_clip"]]}
    more = {"vary": {"off_policy_steps": [1, 2]}, "margin": 1.0}
    study = small_study(methods=METHODS, experiments={"map": section | more}, seeds=[0, 1])
    check_comparisons(study)
    assert [(p.arm.name, p.reference.name, p.margin) for p in pairs(study)] == [
        ("sequence+off_policy_steps=1", "token_clip+off_policy_steps=1", 1.0),
        ("sequence+off_policy_steps=2", "token_clip+off_policy_steps=2", 1.0),
    ]


def own_pairs(**experiments: Any) -> list[tuple[str, str]]:
    changes = {"pairs": {"base": "dapo", "clip": {"low": 0.1}}, "more": {"base": "pairs", "clip": {"low": 0.2}}}
    found = pairs(small_study(methods=changes, experiments=experiments))
    assert all(pair.whole for pair in found)
    return [(pair.arm.name, pair.reference.name) for pair in found]


def test_an_own_method_is_compared_with_the_nearest_base_that_is_trained() -> None:
    every = {"methods": ["grpo", "dapo", "pairs", "more"]}
    assert own_pairs(e=every) == [("pairs", "dapo"), ("more", "pairs")]
    assert own_pairs(e={"methods": ["dapo", "more"]}) == [("more", "dapo")]
    assert own_pairs(e={"methods": ["grpo", "more"]}) == []
    updates = {"methods": ["dapo", "pairs"], "vary": {"updates_per_batch": [1, 2]}}
    assert own_pairs(e=updates) == [("pairs+updates_per_batch=1", "dapo+updates_per_batch=1"), ("pairs", "dapo")]
    only_base = {"methods": ["dapo"], "vary": {"updates_per_batch": [1]}}
    assert own_pairs(e={"methods": ["pairs"]}, f=only_base) == [], "with other settings"


@pytest.mark.parametrize(
    ("methods", "reference", "vary", "message"),
    [
        (["token", "dynamic", "with_kl"], "token", {}, r"'with_kl' differs from 'token' in clip and penalties.*rule 1"),
        (["token", "sequence"], "tokn", {}, r"experiments\.map\.reference: 'tokn' is not one of.*Did you mean 'token'"),
        (
            ["token", "sequence"],
            "token",
            {"updates_per_batch": [1, 2]},
            r"vary\.updates_per_batch changes the number.*rule 2",
        ),
        (["token", "sequence"], "token", {"steps": [2, 4]}, r"rule 2"),
        (["token", "sequence"], "token", {"epochs": [1, 2]}, r"vary\.epochs changes the number.*rule 2"),
    ],
)
def test_a_comparison_that_breaks_a_rule_is_refused(
    methods: list[str], reference: str, vary: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_comparisons(experiment(methods, reference, vary))


@pytest.mark.parametrize(("seeds", "own", "key"), [([0], None, "seeds"), ([0, 1], [1], r"experiments\.map\.seeds")])
def test_a_comparison_with_one_seed_is_refused(seeds: list[int], own: list[int] | None, key: str) -> None:
    section = {"methods": ["token", "none"], "reference": "none", "seeds": own}
    with pytest.raises(
        UserError, match=rf"map\.reference: .*one seed \({key}: \[\d\]\).*rule 8 of docs/statistics\.md"
    ):
        check_comparisons(small_study(methods=METHODS, experiments={"map": section}, seeds=seeds))
    check_comparisons(small_study(methods=METHODS, experiments={"map": section | {"reference": None}}, seeds=seeds))


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
def test_settings_are_chosen_on_problems_seeds_and_start_models_that_judge_nothing(
    chose: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    other = {**SMALL, "name": "ranges", "seeds": [5, 6], "data": {**SMALL["data"], "seed": 2}, **chose}
    path = write_study(tmp_path / "ranges.yaml", other)
    study = small_study(seeds=[0, 1], tuned_on=[str(path)])
    if message is None:
        check_tuning(study)
    else:
        with pytest.raises(UserError, match=rf"{message}.*rule 4 of docs/statistics\.md"):
            check_tuning(study)


def test_a_study_that_chose_settings_and_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tuned_on: .*gone\.yaml: no such study file"):
        check_tuning(small_study(tuned_on=[str(tmp_path / "gone.yaml")]))
