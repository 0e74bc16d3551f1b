"""What must be equal to what, in value and in gradient, whatever the numbers (float64)."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective.method import resolved_methods
from policygrain.objective.ratio import Block, TokenRatio

from ..support.batches import METHODS, assert_same, evaluate, few, fields

AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm")
every_method = pytest.mark.parametrize("name", METHODS)
# Of each of some fifty methods, which share most of their code.
fewer = settings(few, max_examples=min(10, few.max_examples))
sizes_and_weights = {
    "name": st.just("block"),
    "layout": st.sampled_from(["sliding", "tiled"]),
    "weights": st.sampled_from(["uniform", "future", "joint"]),
}
block_of_one = st.fixed_dictionaries(sizes_and_weights | {"size": st.just(1)})
any_block = st.fixed_dictionaries(sizes_and_weights | {"size": st.integers(1, 12), "future_weight": st.floats(0, 0.99)})


# ---- on-policy, and blocks from the token to the sequence -----------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].ratio.name != "group_expectation"])
@fewer
@given(data=fields(min_live=1))
def test_on_policy_every_ratio_is_one_and_nothing_is_clipped(name, data):
    same = data["old_log_probs"]
    now = {"log_probs": same, "rollout_log_probs": same, "future_log_probs": data["old_future_log_probs"]}
    metrics = evaluate(METHODS[name], data | now).metrics
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-12)
    assert metrics["ratio_max"] == 1
    assert metrics["ratio_variance"] == pytest.approx(0, abs=1e-12)
    assert metrics["kl_old"] == metrics["clip_fraction_low"] == metrics["clip_fraction_high"] == 0


@every_method
@fewer
@given(data=fields(min_live=2), block=block_of_one)
def test_a_block_of_one_is_a_token(name, data, block):
    token, one = (dataclasses.replace(METHODS[name], ratio=r) for r in (TokenRatio(), Block(**block)))
    assert_same(evaluate(token, data), evaluate(one, data))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(data=fields(), block=any_block)
def test_normalised_blocks_are_the_token_ratio_on_policy_and_leave_the_ratio_as_it_is(aggregation, data, block):
    batch = TokenBatch(**data)
    published, normalised = (Block(**block, edges=edges)(batch) for edges in ("as_published", "normalised"))
    assert torch.equal(published, normalised)
    data |= {"log_probs": data["old_log_probs"]}
    ratios = ("token", "none", block | {"edges": "normalised"})
    token, none, normalised = (evaluate(method("dapo", aggregation=aggregation, ratio=r), data) for r in ratios)
    assert_same(token, normalised)
    assert_same(none, normalised)


# ---- methods that are the same --------------------------------------------------------------------------------------

# What is made of a batch.
GIVEN = {
    "as it is": lambda data: data,
    "on_policy": lambda data: data | {"log_probs": data["old_log_probs"]},
    "sampled_by_old": lambda data: data | {"old_log_probs": data["rollout_log_probs"]},  # the engine's probabilities
    "negative": lambda data: data | {"advantages": -data["advantages"].abs()},
    "near": lambda data: data | {"log_probs": data["old_log_probs"].lerp(data["log_probs"], 0.01)},
    "groups_of_one": lambda data: data | {"groups": torch.arange(len(data["mask"]))},
    "turns_of_one": lambda data: data | {"mask": data["mask"] & (torch.arange(data["mask"].shape[1]) % 2 == 0)},
}
SAME = [
    {**same, **{key: same[key] | more for key in ("one", "other")}}
    for same in yaml.safe_load(Path(__file__).with_name("same.yaml").read_text())
    for more in ([{"aggregation": name} for name in AGGREGATIONS] if "for_each" in same else [{}])
]
RATIO_OF_ONE = "grpo gspo turn_ratio gspo_token gmpo luspo cispo vespo sapo dppo_tv dppo_kl minirl fipo dro"
SAME += [
    {
        "one": {"base": name},
        "other": {"base": "reinforce", "aggregation": method(name).aggregation.data()},
        **dict.fromkeys(("given", "and_of"), "on_policy"),
        "gradient": 1e-7,
    }
    for name in RATIO_OF_ONE.split()
]


@pytest.mark.parametrize("same", SAME, ids=[f"{same['one']['base']} {same['other']['base']}" for same in SAME])
@few
@given(data=fields(min_live=1))
def test_two_methods_are_the_same(same, data):
    one, other = resolved_methods({key: same[key] for key in ("one", "other")}).values()
    assert "given" in same or one.advantage == other.advantage
    found = evaluate(one, GIVEN[same.get("given", "as it is")](data))
    expected = evaluate(other, GIVEN[same.get("and_of", "as it is")](data))
    if "gradient" not in same:
        assert_same(found, expected, same.get("tolerance", 1e-10))
    else:
        torch.testing.assert_close(found.gradient, expected.gradient, rtol=same["gradient"], atol=same["gradient"])


MASKED = {"name": "likelihood", "low": 0.8, "cap": 1.28, "outside": "mask"}


@few
@given(data=fields())
def test_a_masked_likelihood_clips_what_ppo_clips(data):
    one, other = (evaluate(chosen, data).metrics for chosen in (method("dapo", clip=MASKED), method("dapo")))
    for side in ("low", "high"):
        assert one[f"clip_fraction_{side}"] == other[f"clip_fraction_{side}"]


# ---- however a step is divided, padded or ordered, and whatever is on padding ---------------------------------------


@every_method
@fewer
@given(data=fields(min_live=2, correction=True), choice=st.data())
def test_order_division_and_padding_do_not_matter(name, data, choice):
    """Responses in another order, in micro-batches, with padding on any side, of any amount and content."""
    count, lengths = len(data["mask"]), data["mask"].sum(1).tolist()
    order = choice.draw(st.permutations(range(count)))
    part_of = choice.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    parts = [[row for row in range(count) if part_of[row] == part] for part in sorted(set(part_of))]
    width = max(lengths) + choice.draw(st.integers(0, 5))
    starts = [choice.draw(st.integers(0, width - length)) for length in lengths]
    garbage = choice.draw(st.sampled_from([7.7, math.nan, math.inf, -math.inf]))

    def place(x, padding=garbage):
        if not isinstance(x, torch.Tensor):
            return x
        if x.ndim == 1:
            return x[order]
        placed = torch.full((count, width), padding if x.is_floating_point() else 0, dtype=x.dtype)
        for row, old in enumerate(order):
            placed[row, starts[old] : starts[old] + lengths[old]] = x[old, : lengths[old]]
        return placed

    one = evaluate(METHODS[name], data)
    other = evaluate(METHODS[name], {key: place(x) for key, x in data.items()}, parts)
    gradients = {key: place(x, 0.0) for key, x in one._asdict().items() if key.endswith("gradient")}
    assert_same(one._replace(**gradients), other)
    assert other.metrics == pytest.approx(one.metrics, abs=1e-10)
