"""Methods as data: presets, a study's own methods, and what is said about mistakes.

Their settings are compared with docs/methods by tests/repository/test_docs.py.
"""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from policygrain import method
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.objective import Sampler, comparison_names, method_names
from policygrain.objective.clip import NoClip, PpoClip
from policygrain.objective.method import TEXTS
from policygrain.objective.presets import parse, resolve
from policygrain.objective.ratio import Block, NoRatio

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
HIGHER, NARROW = ({"low": low, "high": high, "dual": None} for low, high in ((0.2, 0.28), (3e-4, 4e-4)))
# Ratio, and the range of NAME_clip; all else is as in `none`.
COMPARISON = {
    "none": ("none", None),
    "token": ("token", (0.1, 0.14)),
    "block": ("block K=5, uniform, normalised", (0.1, 0.14)),
    "prefix": ("prefix", (0.2, 0.28)),
    "sequence": ("sequence", (0.003, 0.004)),
    "product": ("product, cap 2.0", None),
}


def test_presets_to_compare_ratios_with_differ_in_nothing_else():
    ranges = {}
    for name in comparison_names():
        chosen, ratio = method(name), name.removesuffix("_clip")
        assert chosen.ratio.label == COMPARISON[ratio][0] and chosen.label and chosen.summary
        assert dataclasses.replace(chosen, ratio=NoRatio(), clip=NoClip()).data() == method("none").data() | {
            key: getattr(chosen, key) for key in TEXTS
        }
        if name != ratio:
            ranges[ratio] = chosen.clip
        else:
            assert chosen.clip == NoClip()
    assert ranges == {name: PpoClip(low=b[0], high=b[1]) for name, (_, b) in COMPARISON.items() if b}
    dapo = method("dapo")
    assert (method("none").aggregation, method("none").advantage) == (dapo.aggregation, dapo.advantage)
    assert method("none").sampler == Sampler() and not method("none").penalties
    assert not set(comparison_names()) & set(method_names())


def test_the_command_lists_them_as_data_that_can_be_read_back(capsys):
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == [*method_names(), *comparison_names()]
    for name, data in listed.items():
        assert parse(name, data) == method(name)
    assert main(["methods"]) == 0
    published, comparisons = capsys.readouterr().out.split("To compare ratios")
    assert "\n  tepo " in published and "\n  token_clip " in comparisons


# --- A study's own ---


def test_own_methods_change_presets_and_each_other():
    own = {
        "narrow": {"base": "tepo", "clip": {"low": 0.1}},
        "narrow_plain": {"base": "narrow", "penalties": []},
        "grpo": {"aggregation": "token_mean"},  # changes the preset of the same name
        "on_changed": {"base": "grpo"},
        "alone": {"ratio": "prefix"},
        "token_clip": {"clip": {"high": 0.3}},
        "token": {"base": "dapo", "clip": None},
    }
    assert method("narrow", own).clip.settings == {"low": 0.1, "high": 0.28, "dual": None}
    assert method("narrow", own).penalties == method("tepo").penalties
    assert method("narrow_plain", own).clip == method("narrow", own).clip
    assert method("narrow_plain", own).penalties == ()
    assert method("grpo", own).aggregation.name == method("on_changed", own).aggregation.name == "token_mean"
    assert method("grpo", own).clip == method("grpo").clip
    alone = method("alone", own)  # what is not said has a default
    assert (alone.ratio.name, alone.clip.name, alone.aggregation.name) == ("prefix", "none", "token_mean")
    assert method("tepo").clip.settings == HIGHER  # none of which has touched the presets
    assert method("token_clip", own).clip == PpoClip(low=0.1, high=0.3)
    assert method("token", own).sampler.dynamic  # a method of the study, in the place of the preset
    assert method("gspo", clip={"name": "ppo", "high": 0.5}).clip.settings == NARROW | {"high": 0.5}
    assert method("gspo", clip={"low": "1e-3", "high": 1}).clip.settings == {"low": 0.001, "high": 1.0, "dual": None}


def test_what_a_method_needs():
    needs = {name: set(method(name).needs) for name in method_names()}
    assert {name: found for name, found in needs.items() if found} == {
        "clip_cov": {"step_log_probs"},
        "kl_cov": {"step_log_probs"},
        "tepo_max_entropy": {"entropy_gradient"},
        "mpo_heads": {"mtp_heads"},
        "gepo": {"groups"},
        "m2po": {"step_log_probs"},
        "a3po": {"staleness"},
    }
    assert method("mpo", ratio={"layout": "segments"}).needs == {"segments"}
    assert method("dapo", aggregation="prompt_mean").needs == {"groups"}
    assert method("grpo", penalties=["kl"]).needs == {"reference"}
    by_covariance = {**resolve("tepo")["penalties"][0], "entropy_signal": "covariance"}
    assert method("tepo", penalties=[by_covariance]).needs == {"step_log_probs"}
    assert method("mpo_heads", penalties=["kl", "entropy_bonus"]).needs == {
        "mtp_heads",
        "reference",
        "entropy_gradient",
    }


def test_label_and_source_are_those_of_the_method_itself():
    own = {"narrow": {"base": "tepo", "clip": {"low": 0.1}}, "tepo": {"clip": {"low": 0.3}}}
    assert [getattr(method("narrow", own), key) for key in TEXTS] == ["", "", ""]
    assert method("tepo", own).label == "TEPO"
    assert method("token_clip", {"token_clip": {"clip": {"high": 0.3}}}).label == method("token_clip").label
    assert method("gspo", ratio={"stop_gradient": True}).ratio.label == "sequence, stop_gradient True"
    assert Block(future_weight=0.1).label == "block K=5, φ=0.1"
    assert method("tepo", own).source == method("tepo").source != ""  # a changed preset is still that preset


# --- Mistakes ---


@pytest.mark.parametrize(("name", "changes", "says"), MISTAKES["refused"])
def test_a_mistake_is_named_and_mended(name, changes, says):
    with pytest.raises(UserError, match=says):
        method(name, **changes)


def test_a_circle_of_bases_is_named():
    with pytest.raises(UserError, match="one → two → one"):
        method("one", {"one": {"base": "two"}, "two": {"base": "one"}})
    with pytest.raises(UserError, match=r"methods\.mine\.base: no method is called 'tpeo'.*'tepo'"):
        method("mine", {"mine": {"base": "tpeo"}})
