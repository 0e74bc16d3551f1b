"""Methods as data: presets, a study's own, a user's own functions, what they need, and what is said about mistakes."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
import torch
import yaml

from policygrain import StepTotals, TokenBatch, method
from policygrain.errors import UserError
from policygrain.objective import Sampler, comparison_names, method_names, needs
from policygrain.objective.clip import NoClip, PpoClip
from policygrain.objective.loss import merge_metrics
from policygrain.objective.method import TEXTS, build, resolved_methods
from policygrain.objective.ratio import NoRatio

from ..support.batches import METHODS, evaluate, random_fields

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
HIGHER, NARROW = ({"low": low, "high": high, "dual": None} for low, high in ((0.2, 0.28), (3e-4, 4e-4)))
# Ratio, and the range of NAME_clip; all else is as in `none`.
COMPARISON = {
    "none": ("none", None),
    "token": ("token", (0.1, 0.14)),
    "block": ("block, weights uniform, edges normalised", (0.1, 0.14)),
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


def test_methods_are_data_that_can_be_read_back():
    for name in (*method_names(), *comparison_names()):
        assert build(name, json.loads(json.dumps(method(name).data()))) == method(name)


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
    given, own = copy.deepcopy(own), resolved_methods(own)
    assert own["narrow"].clip.settings == {"low": 0.1, "high": 0.28, "dual": None}
    assert own["narrow"].penalties == method("tepo").penalties
    assert own["narrow_plain"].clip == own["narrow"].clip
    assert own["narrow_plain"].penalties == ()
    assert own["grpo"].aggregation.name == own["on_changed"].aggregation.name == "token_mean"
    assert own["grpo"].clip == method("grpo").clip
    alone = own["alone"]  # what is not said has a default
    assert (alone.ratio.name, alone.clip.name, alone.aggregation.name) == ("prefix", "none", "token_mean")
    assert method("tepo").clip.settings == HIGHER  # none of which has touched the presets
    assert own["token_clip"].clip == PpoClip(low=0.1, high=0.3)
    assert own["token"].sampler.dynamic  # a method of the study, in the place of the preset
    assert {name: one.base for name, one in own.items()} == {name: one.get("base") for name, one in given.items()}
    assert resolved_methods({name: one.data() for name, one in own.items()}) == own, "as records have them"
    assert method("gspo", clip={"name": "ppo", "high": 0.5}).clip.settings == NARROW | {"high": 0.5}
    assert method("gspo", clip={"low": 1e-3, "high": 1}).clip.settings == {"low": 0.001, "high": 1.0, "dual": None}


def test_what_a_method_needs():
    needs = {name: method(name).needs for name in method_names()}
    assert {name: found for name, found in needs.items() if found} == {k: set(v) for k, v in MISTAKES["needs"].items()}
    assert method("grpo", penalties=["kl"]).needs == {"reference"}
    by_covariance = {**method("tepo").penalties[0].data(), "entropy_signal": "covariance"}
    assert method("tepo", penalties=[by_covariance]).needs == {"step_log_probs"}
    several = method("mpo_heads", penalties=["kl", "entropy_bonus"])
    assert several.needs == {"mtp_heads", "reference", "entropy_gradient"}


def test_label_and_source_are_those_of_the_method_itself():
    own = resolved_methods({"narrow": {"base": "tepo", "clip": {"low": 0.1}}, "tepo": {"clip": {"low": 0.3}}})
    assert [getattr(own["narrow"], key) for key in TEXTS] == ["tepo", "", "", ""]
    assert method("gspo", ratio={"stop_gradient": True}).ratio.label == "sequence, stop_gradient True"
    assert [getattr(own["tepo"], key) for key in TEXTS] == [getattr(method("tepo"), key) for key in TEXTS]


# --- Mistakes ---


@pytest.mark.parametrize(("name", "changes", "says"), MISTAKES["refused"])
def test_a_mistake_is_named_and_mended(name, changes, says):
    with pytest.raises(UserError, match=says):
        method(name, **changes)


def test_a_circle_of_bases_is_named():
    with pytest.raises(UserError, match="one → two → one"):
        resolved_methods({"one": {"base": "two"}, "two": {"base": "one"}})
    with pytest.raises(UserError, match=r"methods\.mine\.base: no method is called 'tpeo'.*'tepo'"):
        resolved_methods({"mine": {"base": "tpeo"}})


BATCH = {
    "log_probs": torch.tensor([[-0.5, -1.0], [-2.0, -1.0]]),
    "old_log_probs": torch.tensor([[-1.0, -1.0], [-1.0, -1.0]]),
    "advantages": torch.tensor([1.0, -1.0]),
    "mask": torch.tensor([[1, 1], [1, 0]]),
}
OWN = """
from policygrain.objective import needs
from policygrain.objective.clip import Surrogate
from policygrain.objective.loss import merge_metrics

def half(batch, *, share: float = 0.5):
    return batch.log_ratio * share

def surprise(batch):
    return -batch.log_probs

def centred(ratio, batch):
    centre, nothing = batch.step_tensors.log_probs.mean(), batch.mask & False
    return Surrogate(ratio * (batch.log_probs - centre), nothing, nothing)

def low_entropy(batch):
    return -batch.entropy

def far(batch):
    return (batch.log_probs - batch.ref_log_probs).abs()

declared = needs("step_log_probs")(lambda ratio, batch: centred(ratio, batch))
low_entropy_declared = needs("entropy_gradient")(lambda batch: low_entropy(batch))
far_declared = needs("reference", "groups")(lambda batch: far(batch) + 0 * batch.groups.unsqueeze(1))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_own_ratio_by_its_importable_name(own):
    halved = {"clip": None, "ratio": "my_parts:half"}
    batch = TokenBatch(**BATCH)
    chosen = method("grpo", **halved)
    chosen.check()
    # Half of the log-ratios 0.5, 0 | −1; a mean over two responses of the means over their tokens.
    expected = -((torch.tensor(0.25).exp() + 1) / 2 - torch.tensor(-0.5).exp()) / 2
    torch.testing.assert_close(chosen.loss(batch).loss, expected)
    whole = method("grpo", clip=None, ratio={"name": "my_parts:half", "share": 1.0})
    assert whole.loss(batch).loss == method("grpo", clip=None).loss(batch).loss
    assert whole.ratio.label == "my_parts:half, share 1.0"
    penalised = method("grpo", **halved, penalties=["my_parts:surprise"])
    # Mean over sequences of −log π: (0.5 + 1)/2 and 2.
    assert penalised.loss(batch).metrics["penalty"] == pytest.approx((0.75 + 2) / 2)


@pytest.mark.parametrize(("changes", "says"), MISTAKES["not_working"])
def test_what_does_not_work_is_named_by_the_check(own, changes, says):
    chosen = method("grpo", **changes)
    with pytest.raises(UserError, match=says):
        chosen.check()


@pytest.mark.parametrize(("changes", "needed"), MISTAKES["declared"])
def test_what_functions_declare_is_what_the_method_needs(own, changes, needed):
    chosen = method("grpo", **changes)
    assert chosen.needs == set(needed)
    chosen.check()


def test_a_function_cannot_declare_what_does_not_exist():
    with pytest.raises(ValueError, match="a function can need step_log_probs"):
        needs("everything")
    with pytest.raises(ValueError, match="mtp_heads"):
        needs("mtp_heads")


def test_a_mask_without_entropies_says_that_it_goes_by_covariance():
    data = random_fields([5, 3], seed=9)
    with_entropies = evaluate(METHODS["tepo"], data).metrics
    assert "mask_signal_covariance" not in with_entropies
    bare = {key: value for key, value in data.items() if "entropy" not in key}
    with pytest.warns(UserWarning, match="uses covariances"):
        out = method("tepo").loss(TokenBatch(**bare))
    assert out.metrics["mask_signal_covariance"] == 1.0
    assert out.loss == METHODS["tepo by covariance"].loss(TokenBatch(**bare)).loss


# ---- a step in micro-batches ----------------------------------------------------------------------------------------


STEP_WIDE = ["clip_cov", "kl_cov", "tepo by covariance"]


@pytest.mark.parametrize("name", METHODS)
def test_micro_batches_with_the_totals_of_a_step_have_its_loss_and_gradient(name):
    """What a method needs of the step, and the same as numbers: these for all but step-wide statistics."""
    data, chosen = random_fields([7, 3, 0, 9, 5], seed=8, drift=0.05), METHODS[name]
    log_probs = data["log_probs"].requires_grad_()
    batch = TokenBatch(**data)
    numbers = StepTotals(24, 4, batch.whole.max_length, batch.whole.responses)
    steps = [chosen.step_of(batch), numbers]
    if name in STEP_WIDE or "step_log_probs" in chosen.needs:
        with pytest.raises(ValueError, match="statistics of the whole optimizer step are read"):
            chosen.loss(batch.rows(torch.tensor([0, 2])).replace(step=steps.pop()))
    whole = chosen.loss(batch).loss
    for step in steps:
        parts = [batch.rows(torch.tensor(rows)).replace(step=step) for rows in ([0, 2, 4], [1, 3])]
        loss = sum(chosen.loss(part).loss for part in parts)
        torch.testing.assert_close(loss, whole)
        gradients = [torch.autograd.grad(x, log_probs, retain_graph=True)[0] for x in (loss, whole)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", STEP_WIDE)
def test_statistics_of_a_micro_batch_are_said_where_they_are_asked_for(name):
    """Of a micro-batch that is the whole step they are those of the step; of parts of it they are not."""
    data = random_fields([7, 3, 9, 5], seed=8, drift=0.05)
    batch, chosen = TokenBatch(**data), METHODS[name]
    numbers = dataclasses.replace(batch.whole, micro_batch_statistics=True)
    alone = chosen.loss(batch.replace(step=numbers))
    torch.testing.assert_close(alone.loss, chosen.loss(batch).loss)
    assert alone.metrics["micro_batch_statistics"] == 1.0
    assert "micro_batch_statistics" not in chosen.loss(batch).metrics
    rows = (torch.tensor([0, 2]), torch.tensor([1, 3]))
    parts = [chosen.loss(batch.rows(own).replace(step=numbers)) for own in rows]
    assert merge_metrics([part.metrics for part in parts])["micro_batch_statistics"] == 1.0
    if name != "clip_cov":  # it detaches a loss and does not change its value
        assert not torch.isclose(sum(part.loss for part in parts), chosen.loss(batch).loss)
