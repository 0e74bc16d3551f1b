"""Experiments with a reference: one part differs, and steps and samples are equal."""

from pathlib import Path

import pytest
import yaml

from policygrain.errors import UserError
from policygrain.merging import merge
from policygrain.study.comparable import check_comparisons, check_tuning, different_parts, pairs
from policygrain.study.runs import Arm

from ..support.small import SMALL, small_study, write_study

LIST = yaml.safe_load(Path(__file__).with_name("comparable.yaml").read_text())


def experiment(section):
    return small_study(methods=LIST["methods"], experiments={"map": section}, seeds=[0, 1])


def named(found):
    return [f"{pair.arm.name} {pair.reference.name}" for pair in found]


@pytest.mark.parametrize(("one", "other", "parts"), LIST["different_parts"])
def test_parts_that_differ(one, other, parts):
    study = experiment({"methods": ["token"]})
    assert different_parts(Arm(one).method(study), Arm(other).method(study)) == parts


@pytest.mark.parametrize(("section", "expected"), LIST["pairs"])
def test_arms_are_compared_at_their_own_settings(section, expected):
    study = experiment(section)
    check_comparisons(study)
    assert named(pairs(study)) == expected
    assert {pair.margin for pair in pairs(study)} == {section.get("margin")}


@pytest.mark.parametrize(("experiments", "expected"), LIST["wholes"])
def test_an_own_method_is_compared_with_the_nearest_base_that_is_trained(experiments, expected):
    found = pairs(small_study(methods=LIST["own"], experiments=experiments))
    assert all(pair.whole for pair in found) and named(found) == expected


@pytest.mark.parametrize(("section", "says"), LIST["refused"])
def test_a_comparison_that_breaks_a_rule_is_refused(section, says):
    with pytest.raises(UserError, match=says):
        check_comparisons(experiment(section))
    check_comparisons(experiment({**section, "reference": None}))


@pytest.mark.parametrize(("changes", "says"), LIST["chosen_by"])
def test_settings_are_chosen_on_problems_seeds_and_start_models_that_judge_nothing(changes, says, tmp_path):
    path = write_study(tmp_path / "ranges.yaml", merge(SMALL, {"name": "ranges", "seeds": [5, 6], **changes}))
    study = small_study(seeds=[0, 1], tuned_on=[str(path)])
    if says is None:
        check_tuning(study)
    else:
        with pytest.raises(UserError, match=rf"{says}.*rule 4 of docs/statistics\.md"):
            check_tuning(study)
    path.unlink()
    with pytest.raises(UserError, match=r"tuned_on: .*ranges\.yaml: no such study file"):
        check_tuning(study)
