"""Methods as data: the presets' table, a user's own, merging, and what is said about mistakes."""

import json
import math

import pytest
import torch

from policygrain import TokenBatch, method
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.methods import Method, method_names, preset_data
from policygrain.methods.presets import merge

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
    return ("block", {"size": size, "layout": layout, "weights": weights, "future_weight": 0.3, "future": future})


def kl(mask):
    return ("kl", {"coefficient": 1.0, "reference": "old", "mask": mask, "entropy_signal": "measured"})


CLIP_COV = {"low": 0.2, "high": 0.2, "fraction": 2e-4, "cov_low": 1.0, "cov_high": 5.0}
KL_COV = ("kl_cov", {"coefficient": 1.0, "fraction": 2e-3})
TEPO_MASK = kl("positive_advantage_entropy_drop")
BONUS = ("entropy_bonus", {"coefficient": 0.001})
TABLE = {  # ratio, clip, aggregation, sampler, penalties
    "reinforce": (("none", {}), ("none", {}), "token_mean", {}, []),
    "grpo": (("token", {}), ("ppo", SAME), "seq_mean_token_mean", {}, []),
    "grpo_clip_higher": (("token", {}), ("ppo", HIGHER), "seq_mean_token_mean", {}, []),
    "dr_grpo": (("token", {}), ("ppo", SAME), "seq_mean_token_sum_norm", {}, []),
    "dapo": (("token", {}), ("ppo", HIGHER), "token_mean", {"dynamic": True, "overlong_buffer": 0.2}, []),
    "gspo": (SEQUENCE, ("ppo", NARROW), "seq_mean_token_mean", {}, []),
    "clip_cov": (("token", {}), ("clip_cov", CLIP_COV), "token_mean", {}, []),
    "kl_cov": (("token", {}), ("none", {}), "token_mean", {}, [KL_COV]),
    "prefix_is": (("prefix", {}), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "tepo_v1": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "tepo": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, [TEPO_MASK]),
    "tepo_max_entropy": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, [BONUS]),
    "tepo_full_kl": (SEQUENCE, ("ppo", HIGHER), "token_mean", DYNAMIC, [kl("all")]),
    "mpo": (block(5), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_tiled": (block(5, "tiled", "uniform"), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_joint": (block(5, "sliding", "joint"), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_heads": (block(5, future="heads"), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_k2": (block(2), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_k3": (block(3), ("ppo", HIGHER), "token_mean", DYNAMIC, []),
    "mpo_tepo": (block(5), ("ppo", HIGHER), "token_mean", DYNAMIC, [TEPO_MASK]),
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
    assert vars(chosen.sampler) == NO_SAMPLER | sampler
    assert chosen.advantage.name == ("dr_grpo" if name == "dr_grpo" else "grpo")
    assert chosen.summary and chosen.source


def test_the_command_lists_them_as_data_that_can_be_read_back(capsys):
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == list(TABLE)
    for name, data in listed.items():
        assert Method.parse(name, data) == method(name)


def test_the_public_interface_computes_a_loss():
    out = method("grpo", clip=None).loss(TokenBatch(**BATCH))
    assert out.loss.item() == pytest.approx(-((math.exp(0.5) + 1) / 2 - math.exp(-1)) / 2)
    rewards = torch.tensor([[1.0, 0.0]])
    assert method("dr_grpo").advantages(rewards).tolist() == [[0.5, -0.5]]


# --- A user's own ---


def test_an_own_ratio_by_its_importable_name(tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text(
        "def half(batch, *, share: float = 0.5):\n"
        "    return batch.log_ratio * share\n"
        "def entropy_free(batch):\n"
        "    return -batch.log_probs\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = {"halved": {"base": "grpo", "clip": None, "ratio": "my_parts:half"}}
    batch = TokenBatch(**BATCH)
    chosen = method("halved", own)
    assert chosen.loss(batch).loss.item() == pytest.approx(-((math.exp(0.25) + 1) / 2 - math.exp(-0.5)) / 2)
    whole = method("halved", own, ratio={"share": 1.0})
    assert whole.loss(batch).loss == method("grpo", clip=None).loss(batch).loss
    penalised = method("halved", own, penalties=["my_parts:entropy_free"])
    # Mean over sequences of −log π: (0.5 + 1)/2 and 2.
    assert penalised.loss(batch).metrics["penalty"] == pytest.approx((0.75 + 2) / 2)
    with pytest.raises(UserError, match=r"ratio\.shair: .*'share'"):
        method("halved", own, ratio={"shair": 1.0})
    with pytest.raises(UserError, match=r"ratio: 'my_parts:haf' cannot be imported"):
        method("halved", own, ratio="my_parts:haf")


def test_own_methods_are_laid_over_presets_and_over_each_other():
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


@pytest.mark.parametrize(
    ("below", "above", "merged"),
    [
        ({"x": {"a": 1, "b": 2}}, {"x": {"b": 3}}, {"x": {"a": 1, "b": 3}}),  # key by key
        ({"x": {"name": "f", "a": 1}}, {"x": {"a": 2}}, {"x": {"name": "f", "a": 2}}),
        ({"x": {"name": "f", "a": 1}}, {"x": {"name": "g", "b": 2}}, {"x": {"name": "g", "b": 2}}),  # another function
        ({"x": {"name": "f", "a": 1}}, {"x": "g"}, {"x": "g"}),
        ({"x": "f"}, {"x": {"a": 1}}, {"x": {"name": "f", "a": 1}}),  # parameters for a name alone
        ({"x": [1, 2]}, {"x": [3]}, {"x": [3]}),  # lists replace
        ({"x": {"a": 1}}, {"x": None}, {"x": None}),
        ({"x": 1}, {"y": 2}, {"x": 1, "y": 2}),
    ],
)
def test_merging(below, above, merged):
    before = json.dumps(below)
    assert merge(below, above) == merged
    assert json.dumps(below) == before


def test_naming_the_same_clip_keeps_its_parameters():
    assert method("gspo", clip={"name": "ppo", "high": 0.5}).clip.settings == NARROW | {"high": 0.5}


def test_what_a_method_needs():
    to_initial = method("grpo", penalties=[{"name": "kl"}])
    assert to_initial.needs_reference and not method("tepo").needs_reference
    by_covariance = {**preset_data("tepo")["penalties"][0], "entropy_signal": "covariance"}
    whole = [name for name in TABLE if method(name).reads_whole_step]
    assert whole == ["clip_cov", "kl_cov"] and method("tepo", penalties=[by_covariance]).reads_whole_step
    assert [name for name in TABLE if method(name).entropy_has_gradient] == ["tepo_max_entropy"]


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
        ("grpo", {"clip": {"low": "3e-4x"}}, "methods.grpo.clip.low: '3e-4x' is not of type float"),
        ("grpo", {"ratio": {"size": 3}}, "methods.grpo.ratio.size: .*takes no parameters"),
        ("mpo", {"ratio": {"layout": "slide"}}, "methods.mpo.ratio.layout: 'slide' is not one of sliding, tiled"),
        ("mpo", {"ratio": {"size": 2.5}}, "methods.mpo.ratio.size: 2.5 is not of type int"),
        ("tepo", {"penalties": [{"name": "kl_"}]}, r"methods.tepo.penalties\[0\]: .*'kl'"),
        ("tepo", {"penalties": [{"name": "kl", "coeficient": 1}]}, r"penalties\[0\].coeficient: .*'coefficient'"),
        ("dapo", {"sampler": {"dynamc": True}}, "methods.dapo.sampler.dynamc: .*'dynamic'"),
        ("dapo", {"sampler": {"dynamic": 1}}, "methods.dapo.sampler.dynamic: 1 is not"),
        ("grpo", {"ratio": "no_such_package:f"}, "methods.grpo.ratio: .*cannot be imported"),
    ],
)
def test_a_mistake_is_named_and_mended(name, changes, says):
    with pytest.raises(UserError, match=says):
        method(name, **changes)


def test_a_circle_of_bases_is_named():
    with pytest.raises(UserError, match="one → two → one"):
        method("one", {"one": {"base": "two"}, "two": {"base": "one"}})
