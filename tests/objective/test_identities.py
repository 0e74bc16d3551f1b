"""What must be equal to what, in value and in gradient, whatever the numbers (float64)."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective.ratio import Block, TokenRatio

from ..support.batches import METHODS, assert_same, evaluate, few, fields

AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm")
every_method = pytest.mark.parametrize("name", METHODS)
# Of each of some fifty methods, which share most of their code.
fewer = settings(few, max_examples=min(10, few.max_examples))
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)
block_of_one = st.fixed_dictionaries(
    {
        "name": st.just("block"),
        "size": st.just(1),
        "layout": st.sampled_from(["sliding", "tiled"]),
        "weights": st.sampled_from(["uniform", "future", "joint"]),
    }
)


# 1. On-policy.


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


# 2. Blocks: from the token to the sequence.


@every_method
@fewer
@given(data=fields(min_live=2), block=block_of_one)
def test_a_block_of_one_is_a_token(name, data, block):
    token, one = (dataclasses.replace(METHODS[name], ratio=r) for r in (TokenRatio(), Block(**block)))
    assert_same(evaluate(token, data), evaluate(one, data))


any_block = st.fixed_dictionaries(
    {
        "name": st.just("block"),
        "size": st.integers(1, 12),
        "layout": st.sampled_from(["sliding", "tiled"]),
        "weights": st.sampled_from(["uniform", "future", "joint"]),
        "future_weight": st.floats(0, 0.99),
    }
)


@every_aggregation
@few
@given(data=fields(), block=any_block)
def test_on_policy_normalised_blocks_are_the_token_ratio(aggregation, data, block):
    data |= {"log_probs": data["old_log_probs"]}
    ratios = ("token", "none", block | {"edges": "normalised"})
    token, none, normalised = (evaluate(method("dapo", aggregation=aggregation, ratio=r), data) for r in ratios)
    assert_same(token, normalised)
    assert_same(none, normalised)


@few
@given(data=fields(), block=any_block)
def test_normalised_edges_leave_the_ratio_as_it_is(data, block):
    batch = TokenBatch(**data)
    published, normalised = (Block(**block, edges=edges)(batch) for edges in ("as_published", "normalised"))
    assert torch.equal(published, normalised)


# 3. Methods that are the same.

KL_OFF = {"name": "kl", "reference": "old", "mask": "positive_advantage_entropy_drop", "coefficient": 0.0}
NO_SAMPLER = {"dynamic": False, "overlong_buffer": 0.0}
TILE = {"name": "block", "size": 9, "layout": "tiled", "weights": "uniform"}  # at least the longest response
JOINT = TILE | {"size": 20, "weights": "joint", "edges": "normalised"}
STOPPED = {"name": "sequence", "stop_gradient": True}  # GSPO-token
RATIOS = [(TILE, "sequence"), (TILE | {"size": 30}, "sequence"), (JOINT, "product"), (STOPPED, "sequence")]
OWN_GRADIENT = ["product", {"name": "product", "cap": 1.0}, {"name": "prefix", "gradient": "own"}]
SAME = [
    (method("tepo", penalties=[KL_OFF]), method("tepo_v1")),
    (method("tepo_max_entropy", penalties=[{"name": "entropy_bonus", "coefficient": 0.0}]), method("tepo_v1")),
    (method("tepo_v1", aggregation="seq_mean_token_mean", clip={"low": 3e-4, "high": 4e-4}), method("gspo")),
    (method("dapo", aggregation="seq_mean_token_mean", clip={"high": 0.2}, sampler=NO_SAMPLER), method("grpo")),
    (method("mpo", ratio={"size": 3}), method("mpo_k3")),
    (method("mpo_tepo", ratio="sequence"), method("tepo")),
    *(tuple(method("tepo", aggregation=a, ratio=r) for r in pair) for pair in RATIOS for a in AGGREGATIONS),
    (method("gspo", clip={"low": 0.05, "high": 0.07}), method("gspo_token", clip={"low": 0.05, "high": 0.07})),
]
ON_POLICY = [
    (method("dapo", aggregation=a, ratio=r), method("dapo", aggregation=a)) for r in OWN_GRADIENT for a in AGGREGATIONS
]


@pytest.mark.parametrize(
    ("one", "other", "on_policy"), [*((*pair, False) for pair in SAME), *((*pair, True) for pair in ON_POLICY)]
)
@few
@given(data=fields())
def test_two_methods_are_the_same(one, other, on_policy, data):
    if on_policy:
        data |= {"log_probs": data["old_log_probs"]}
    assert_same(evaluate(one, data), evaluate(other, data))
    rewards = data["log_probs"].T
    assert torch.equal(one.advantages(rewards), other.advantages(rewards))


# 4. However a step is divided, padded or ordered, and whatever is on padding.


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
