"""Experiments with a reference: one part differs, and steps and samples are equal."""

from __future__ import annotations

from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.study.comparable import check_references, different_parts, pairs
from policygrain.study.runs import Arm

from ..support.small import small_study

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
    return small_study(methods=METHODS, experiments={"map": section})


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
    study = experiment(["none", "token", "token_clip"], "none", {"ahead": [0, 2]})
    check_references(study)
    assert [(p.arm.name, p.reference.name) for p in pairs(study)] == [
        ("token", "none"),
        ("token+ahead=2", "none+ahead=2"),
        ("token_clip", "none"),
        ("token_clip+ahead=2", "none+ahead=2"),
    ]


@pytest.mark.parametrize(
    ("methods", "reference", "vary", "message"),
    [
        (["token", "dynamic", "with_kl"], "token", {}, r"'with_kl' differs from 'token' in clip and penalties.*rule 1"),
        (
            ["token_clip", "sequence"],
            "token_clip",
            {},
            r"'sequence' differs from 'token_clip' in ratio and clip.*rule 1",
        ),
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
        check_references(experiment(methods, reference, vary))
