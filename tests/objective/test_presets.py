"""Methods as data: the presets' table, a study's own methods, and what is said about mistakes."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest
import torch

from policygrain import TokenBatch, method
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.objective import comparison_names, method_names
from policygrain.objective.clip import NoClip, PpoClip
from policygrain.objective.method import TEXTS
from policygrain.objective.presets import parse, resolve
from policygrain.objective.ratio import Block, NoRatio

BATCH = {
    "log_probs": torch.tensor([[-0.5, -1.0], [-2.0, -1.0]]),
    "old_log_probs": torch.tensor([[-1.0, -1.0], [-1.0, -1.0]]),
    "advantages": torch.tensor([1.0, -1.0]),
    "mask": torch.tensor([[1, 1], [1, 0]]),
}

# The specification's table, every parameter written out.
SAME, HIGHER, NARROW = (
    {"low": low, "high": high, "dual": None} for low, high in ((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4))
)
SEQUENCE = ("sequence", {"stop_gradient": False})
DYNAMIC = {"dynamic": True}


def block(size, layout="sliding", weights="future", future="backbone"):
    settings = {"size": size, "layout": layout, "weights": weights, "future_weight": 0.3, "future": future}
    return ("block", settings | {"edges": "as_published"})


IN_THE_LOSS = {"estimator": "k3", "place": "loss", "times_ratio": False}


def kl(mask):
    return ("kl", {"coefficient": 1.0, "reference": "old", "mask": mask, "entropy_signal": "auto"} | IN_THE_LOSS)


CLIP_COV = {"low": 0.2, "high": 0.2, "fraction": 2e-4, "cov_low": 1.0, "cov_high": 5.0}
KL_COV = ("kl_cov", {"coefficient": 1.0, "fraction": 2e-3})
TEPO_MASK = kl("positive_advantage_entropy_drop")
BONUS = ("entropy_bonus", {"coefficient": 0.001})
FIPO = {"low": 0.2, "high": 0.28, "dual": 10.0, "half_life": 32.0, "least": 1.0, "largest": 1.2, "safety": 10.0}
MINIRL = {"low": 0.8, "cap": 1.28, "outside": "mask"}
DRO = {"low": None, "cap": None, "outside": "bound"}
VESPO = {"positive_power": 2.0, "positive_decay": 3.0, "negative_power": 3.0, "negative_decay": 2.0}
AREAL = {"correction_cap": 5.0, "correction_outside": "mask"}
TABLE = {  # ratio, clip, aggregation, sampler, penalties
    "reinforce": (("none", {}), ("none", {}), "token_mean", {}, []),
    "grpo": (("token", {}), ("ppo", SAME), "seq_mean_token_mean", {}, []),
    "grpo_clip_higher": (("token", {}), ("ppo", HIGHER), "seq_mean_token_mean", {}, []),
    "dr_grpo": (("token", {}), ("ppo", SAME), "seq_mean_token_sum_norm", {}, []),
    "dapo": (("token", {}), ("ppo", HIGHER), "token_mean", {"dynamic": True, "overlong_buffer": 0.2}, []),
    "gspo": (SEQUENCE, ("ppo", NARROW), "seq_mean_token_mean", {}, []),
    "clip_cov": (("token", {}), ("clip_cov", CLIP_COV), "token_mean", {}, []),
    "kl_cov": (("token", {}), ("none", {}), "token_mean", {}, [KL_COV]),
    "prefix_is": (("prefix", {"gradient": "all"}), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "tepo_v1": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "tepo": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, [TEPO_MASK]),
    "tepo_max_entropy": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, [BONUS]),
    "tepo_full_kl": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, [kl("all")]),
    "mpo": (block(5), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_tiled": (block(5, "tiled", "uniform"), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_joint": (block(5, "sliding", "joint"), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_heads": (block(5, future="mtp_heads"), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_k2": (block(2), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_k3": (block(3), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_tepo": (block(5), ("ppo", HIGHER), "token_mean", DYNAMIC, [TEPO_MASK]),
    "gspo_token": (("sequence", {"stop_gradient": True}), ("ppo", NARROW), "seq_mean_token_mean", {}, []),
    "gmpo": (SEQUENCE, ("gmpo", {"low": 0.4, "high": 0.4}), "seq_mean_token_mean", {}, []),
    "luspo": (SEQUENCE, ("ppo", {"low": 2e-3, "high": 2.5e-3, "dual": None}), "seq_mean_token_sum", {}, []),
    "cispo": (("token", {}), ("likelihood", {"low": None, "cap": 5.0, "outside": "bound"}), "token_mean", {}, []),
    "vespo": (("product", {"cap": None}), ("vespo", VESPO), "token_mean", {}, []),
    "sapo": (("token", {}), ("sapo", {"positive": 1.0, "negative": 1.05}), "seq_mean_token_mean", {}, []),
    "dppo_tv": (("token", {}), ("dppo_tv", {"low": 0.15, "high": 0.15}), "token_mean", {}, []),
    "dppo_kl": (("token", {}), ("dppo_kl", {"low": 0.05, "high": 0.05}), "token_mean", {}, []),
    "minirl": (("token", {}), ("likelihood", MINIRL), "seq_mean_token_sum", {"correction_cap": 2.0}, []),
    "fipo": (("token", {}), ("fipo", FIPO), "token_mean", {"dynamic": True, "overlong_buffer": 0.2}, []),
    "gepo": (("group_expectation", {}), ("ppo", SAME), "seq_mean_token_mean", {}, []),
    "dro": (("none", {}), ("likelihood", DRO), "token_mean", {}, [("squared_log_ratio", {"coefficient": 0.05})]),
    "turn_ratio": (block(5, "turns", "uniform"), ("ppo", SAME), "seq_mean_token_mean", {}, []),
    "topr": (("product", {"cap": None}), ("topr", {"cap": 1.0}), "seq_mean_token_sum", {}, []),
    "m2po": (("token", {}), ("m2po", {"budget": 0.04}), "token_mean", {}, []),
    "decoupled": (("token", {}), ("ppo", SAME), "token_mean", AREAL, []),
    "a3po": (("token", {}), ("ppo", SAME), "token_mean", AREAL, []),
    "bypass": (("token", {}), ("ppo", SAME), "token_mean", {}, []),
}
NO_SAMPLER = {
    "dynamic": False,
    "oversample": 2.0,
    "max_batches": 4,
    "overlong_buffer": 0.0,
    "mask_truncated": False,
    "correction_cap": None,
}


def test_the_presets_are_those_of_the_table():
    assert method_names() == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_has_the_settings_of_the_table(name):
    chosen = method(name)
    ratio, clip, aggregation, sampler, penalties = TABLE[name]
    assert (chosen.ratio.name, chosen.ratio.settings) == ratio
    assert (chosen.clip.name, chosen.clip.settings) == clip
    assert chosen.aggregation.name == aggregation
    assert [(p.name, p.settings) for p in chosen.penalties] == penalties
    assert chosen.sampler.data() == NO_SAMPLER | sampler
    assert chosen.advantage.name == ("dr_grpo" if name in ("dr_grpo", "minirl", "dro", "topr") else "grpo")
    assert chosen.anchor == {"bypass": "rollout", "a3po": "loglinear"}.get(name, "old")
    assert chosen.summary and chosen.source


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
    assert method("none").sampler.data() == NO_SAMPLER and not method("none").penalties
    assert not set(comparison_names()) & set(method_names())


def test_a_study_changes_the_band_of_a_comparison():
    own = {"token_clip": {"clip": {"high": 0.3}}, "token": {"base": "dapo", "clip": None}}
    assert method("token_clip", own).clip == PpoClip(low=0.1, high=0.3)
    assert method("token_clip", own).label == method("token_clip").label
    assert method("token", own).sampler.dynamic  # a method of the study, in the place of the preset


def test_the_command_lists_them_as_data_that_can_be_read_back(capsys):
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == [*TABLE, *comparison_names()]
    for name, data in listed.items():
        assert parse(name, data) == method(name)
    assert main(["methods"]) == 0
    published, comparisons = capsys.readouterr().out.split("To compare ratios")
    assert "\n  tepo " in published and "\n  token_clip " in comparisons


def test_the_public_interface_computes_a_loss():
    out = method("grpo", clip=None).loss(TokenBatch(**BATCH))
    assert out.loss.item() == pytest.approx(-((math.exp(0.5) + 1) / 2 - math.exp(-1)) / 2)
    rewards = torch.tensor([[1.0, 0.0]])
    assert method("dr_grpo").advantages(rewards).tolist() == [[0.5, -0.5]]


# --- A study's own ---


def test_own_methods_change_presets_and_each_other():
    own = {
        "narrow": {"base": "tepo", "clip": {"low": 0.1}},
        "narrow_plain": {"base": "narrow", "penalties": []},
        "grpo": {"aggregation": "token_mean"},  # changes the preset of the same name
        "on_changed": {"base": "grpo"},
        "alone": {"ratio": "prefix"},
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


def test_naming_the_same_clip_keeps_its_parameters():
    assert method("gspo", clip={"name": "ppo", "high": 0.5}).clip.settings == NARROW | {"high": 0.5}


def test_what_a_method_needs():
    needs = {name: set(method(name).needs) for name in TABLE}
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
    assert method("tepo", own).source == method("tepo").source != ""  # a changed preset is still that preset
    assert method("narrow", own).clip.settings == {"low": 0.1, "high": 0.28, "dual": None}


def test_numbers_that_yaml_takes_for_text():
    assert method("grpo", clip={"low": "1e-3", "high": 1}).clip.settings == {"low": 0.001, "high": 1.0, "dual": None}


def test_labels_are_those_that_records_and_claims_have():
    labels = {name: method(name).ratio.label for name in TABLE if method(name).ratio.name == "block"}
    assert labels == {
        "mpo": "block K=5",
        "mpo_tiled": "block K=5, tiled, uniform",
        "mpo_joint": "block K=5, joint",
        "mpo_heads": "block K=5, mtp_heads",
        "mpo_k2": "block K=2",
        "mpo_k3": "block K=3",
        "mpo_tepo": "block K=5",
        "turn_ratio": "block, turns, uniform",
    }
    assert Block(future_weight=0.1).label == "block K=5, φ=0.1"
    assert method("gspo", ratio={"stop_gradient": True}).ratio.label == "sequence, stop_gradient True"


def test_importing_methods_does_not_import_torch():
    code = "import sys, policygrain.objective; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- Mistakes ---


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("tpeo", {}, "'tpeo'.*'tepo'"),
        ("grpo", {"agregation": "token_mean"}, "methods.grpo.agregation: .*'aggregation'"),
        ("grpo", {"aggregation": "tokenmean"}, "methods.grpo.aggregation: .*'token_mean'"),
        ("grpo", {"ratio": "sequnce"}, "methods.grpo.ratio: .*'sequence'"),
        ("grpo", {"advantage": "grop"}, "methods.grpo.advantage: .*'grpo'"),
        ("grpo", {"clip": {"hihg": 0.3}}, "methods.grpo.clip.hihg: .*'high'"),
        ("grpo", {"clip": {"low": "3e-4x"}}, "methods.grpo.clip.low: .*valid number .*'3e-4x'"),
        ("grpo", {"clip": {"low": -0.1}}, r"methods.grpo.clip.low: .*greater than or equal to 0 \(got -0.1\)"),
        ("grpo", {"clip": {"low": 1.1}}, r"methods.grpo.clip.low: .*less than or equal to 1 \(got 1.1\)"),
        ("grpo", {"clip": {"high": -0.1}}, "methods.grpo.clip.high: "),
        ("grpo", {"clip": {"high": math.inf}}, "methods.grpo.clip.high: .*finite"),
        ("clip_cov", {"clip": {"low": -0.1}}, "methods.clip_cov.clip.low: "),
        ("grpo", {"clip": {"dual": 1.0}}, "methods.grpo.clip.dual: .*greater than 1"),
        ("grpo", {"ratio": {"size": 3}}, "methods.grpo.ratio.size: .*It has no parameters"),
        ("grpo", {"ratio": None}, "methods.grpo.ratio: expected a name, or a mapping"),
        ("grpo", {"penalties": "kl"}, "methods.grpo.penalties: expected a list"),
        ("grpo", {"penalties": [{"coefficient": 1.0}]}, r"methods.grpo.penalties\[0\]: expected a name"),
        ("grpo", {"penalties": [{"name": "kl", "coefficient": math.nan}]}, r"penalties\[0\].coefficient: .*finite"),
        (
            "mpo",
            {"ratio": {"layout": "slide"}},
            "methods.mpo.ratio.layout: 'slide' is not 'sliding', 'tiled', 'segments' or 'turns'",
        ),
        ("mpo", {"ratio": {"size": 2.5}}, "methods.mpo.ratio.size: .*valid integer"),
        ("mpo", {"ratio": {"size": 0}}, "methods.mpo.ratio.size: .*greater than or equal to 1"),
        ("mpo", {"ratio": {"siez": 3}}, "methods.mpo.ratio.siez: 'block' has no parameter 'siez'.*'size'"),
        ("mpo", {"ratio": {"future": "heads"}}, "methods.mpo.ratio.future: 'heads' is not .*'mtp_heads'"),
        ("mpo_heads", {"ratio": {"layout": "tiled"}}, "methods.mpo_heads.ratio: .*needs layout: sliding"),
        ("mpo_heads", {"ratio": {"edges": "normalised"}}, "methods.mpo_heads.ratio: .*needs future: backbone"),
        ("mpo_heads", {"ratio": {"size": 1}}, "methods.mpo_heads.ratio: .*a size of at least 2"),
        ("mpo", {"ratio": {"future_weight": 1}}, "methods.mpo.ratio.future_weight: .*less than 1"),
        ("dapo", {"ratio": {"name": "product", "cap": 0.5}}, "methods.dapo.ratio.cap: .*greater than or equal to 1"),
        (
            "bypass",
            {"sampler": {"correction_cap": 2.0}},
            "methods.bypass: anchor: rollout .*would correct for it twice",
        ),
        ("gepo", {"anchor": "rollout"}, "methods.gepo: anchor: rollout has no ratio group_expectation"),
        ("gepo", {"anchor": "loglinear"}, "methods.gepo: anchor: loglinear has no ratio group_expectation"),
        ("dapo", {"anchor": "engine"}, "methods.dapo.anchor: 'engine' is not 'old', 'rollout' or 'loglinear'"),
        ("dapo", {"sampler": {"rejection_low": 0.5}}, "sampler: rejection_low needs rejection_high"),
        ("dapo", {"sampler": {"rejection_low": 2, "rejection_high": 1}}, "rejection_low must not be above"),
        ("grpo", {"off_policy_bound": -1}, "methods.grpo.off_policy_bound: .*greater than or equal to 0"),
        ("grpo", {"sampler": {"correction_cap": 1.0, "correction_floor": 2.0}}, "sampler: correction_floor must not"),
        ("fipo", {"clip": {"least": 1.5}}, "methods.fipo.clip: least must not be above largest"),
        ("mpo_heads", {"heads": {}}, "methods.mpo_heads.heads: unknown key. .*'mtp_heads'"),
        ("tepo", {"penalties": [{"name": "kl_"}]}, r"methods.tepo.penalties\[0\]: .*'kl'"),
        ("tepo", {"penalties": [{"name": "kl", "coeficient": 1}]}, r"penalties\[0\].coeficient: .*'coefficient'"),
        ("dapo", {"sampler": {"dynamc": True}}, "methods.dapo.sampler.dynamc: .*'dynamic'"),
        ("dapo", {"sampler": {"dynamic": 1}}, "methods.dapo.sampler.dynamic: .*boolean"),
        ("dapo", {"sampler": {"correction_cap": 0.0}}, "methods.dapo.sampler.correction_cap: .*greater than 0"),
    ],
)
def test_a_mistake_is_named_and_mended(name, changes, says):
    with pytest.raises(UserError, match=says):
        method(name, **changes)


def test_a_circle_of_bases_is_named():
    with pytest.raises(UserError, match="one → two → one"):
        method("one", {"one": {"base": "two"}, "two": {"base": "one"}})
    with pytest.raises(UserError, match=r"methods\.mine\.base: no method is called 'tpeo'.*'tepo'"):
        method("mine", {"mine": {"base": "tpeo"}})


@pytest.mark.parametrize(
    ("name", "key", "default", "other"),
    [("mpo", "edges", "as_published", "normalised"), ("prefix_is", "gradient", "all", "own")],
)
def test_a_later_key_is_not_in_records_where_it_has_its_default(name, key, default, other):
    """Records, and the digests that say whether a run is up to date, were made before there was such a key."""
    before, after = method(name), method(name, ratio={key: other})
    assert before.ratio.settings[key] == default and key not in before.data()["ratio"]
    assert after.data()["ratio"] == before.data()["ratio"] | {key: other}
    assert parse(name, after.data()) == after
