"""What must be equal to what, in value and in gradient, whatever the numbers (float64)."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective.ratio import Block, TokenRatio

from ..support.batches import METHODS, assert_same, evaluate, few, fields

AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm")
every_method = pytest.mark.parametrize("name", METHODS)
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)
TILE = {"name": "block", "size": 9, "layout": "tiled", "weights": "uniform"}  # at least the longest response
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
@few
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
@few
@given(data=fields(min_live=2), block=block_of_one)
def test_a_block_of_one_is_a_token(name, data, block):
    token, one = (dataclasses.replace(METHODS[name], ratio=r) for r in (TokenRatio(), Block(**block)))
    assert_same(evaluate(token, data), evaluate(one, data))


@every_aggregation
@few
@given(data=fields(), size=st.integers(9, 30))
def test_one_uniform_tile_is_the_sequence(aggregation, data, size):
    tile, sequence = (method("tepo", aggregation=aggregation, ratio=r) for r in (TILE | {"size": size}, "sequence"))
    assert_same(evaluate(tile, data), evaluate(sequence, data))


@every_aggregation
@few
@given(data=fields(), size=st.integers(9, 30))
def test_one_normalised_joint_tile_is_the_product_ratio(aggregation, data, size):
    joint = TILE | {"size": size, "weights": "joint", "edges": "normalised"}
    tile, product = (method("tepo", aggregation=aggregation, ratio=r) for r in (joint, "product"))
    assert_same(evaluate(tile, data), evaluate(product, data))


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


@every_aggregation
@few
@given(data=fields())
def test_on_policy_a_product_with_each_token_s_own_gradient_is_the_token_ratio(aggregation, data):
    data |= {"log_probs": data["old_log_probs"]}
    token = evaluate(method("dapo", aggregation=aggregation), data)
    for own in ("product", {"name": "product", "cap": 1.0}, {"name": "prefix", "gradient": "own"}):
        assert_same(token, evaluate(method("dapo", aggregation=aggregation, ratio=own), data))


# 3. GSPO-token.


@pytest.mark.parametrize("clip", [None, {"low": 0.05, "high": 0.07}])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(data=fields())
def test_the_stop_gradient_changes_nothing_for_one_advantage_per_response(aggregation, clip, data):
    plain = method("gspo", aggregation=aggregation, clip=clip)
    stopped = method("gspo", aggregation=aggregation, clip=clip, ratio={"stop_gradient": True})
    assert_same(evaluate(plain, data), evaluate(stopped, data))


# 4. Presets are points in one space.

KL_OFF = {"name": "kl", "reference": "old", "mask": "positive_advantage_entropy_drop", "coefficient": 0.0}
NO_SAMPLER = {"dynamic": False, "overlong_buffer": 0.0}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (method("tepo", penalties=[KL_OFF]), method("tepo_v1")),
        (method("tepo_max_entropy", penalties=[{"name": "entropy_bonus", "coefficient": 0.0}]), method("tepo_v1")),
        (method("tepo_v1", aggregation="seq_mean_token_mean", clip={"low": 3e-4, "high": 4e-4}), method("gspo")),
        (method("dapo", aggregation="seq_mean_token_mean", clip={"high": 0.2}, sampler=NO_SAMPLER), method("grpo")),
        (method("mpo", ratio={"size": 3}), method("mpo_k3")),
        (method("mpo_tepo", ratio="sequence"), method("tepo")),
    ],
)
@few
@given(data=fields())
def test_one_preset_turns_into_another(one, other, data):
    assert_same(evaluate(one, data), evaluate(other, data))
    rewards = data["log_probs"].T
    assert torch.equal(one.advantages(rewards), other.advantages(rewards))


# 5. However a step is cut, padded or ordered.


@every_method
@few
@given(data=fields(min_live=2, correction=True), choice=st.data())
def test_the_split_into_micro_batches_does_not_matter(name, data, choice):
    rows = range(len(data["mask"]))
    where = choice.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    cut = [[row for row in rows if where[row] == part] for part in sorted(set(where))]
    whole, parts = evaluate(METHODS[name], data), evaluate(METHODS[name], data, cut)
    assert_same(whole, parts)
    assert parts.metrics == pytest.approx(whole.metrics, abs=1e-10)


@every_method
@few
@given(data=fields(min_live=2, correction=True), choice=st.data())
def test_the_order_of_responses_does_not_matter(name, data, choice):
    order = torch.tensor(choice.draw(st.permutations(range(len(data["mask"])))))
    shuffled = {key: x[order] if isinstance(x, torch.Tensor) else x for key, x in data.items()}
    one, other = evaluate(METHODS[name], data), evaluate(METHODS[name], shuffled)
    back = order.argsort()
    assert_same(one, other._replace(**{k: x[back] for k, x in other._asdict().items() if k.endswith("gradient")}))
    assert other.metrics == pytest.approx(one.metrics, abs=1e-10)


@every_method
@few
@given(data=fields(min_live=2, correction=True), choice=st.data())
def test_padding_on_any_side_and_of_any_amount_does_not_matter(name, data, choice):
    lengths = data["mask"].sum(1).tolist()
    width = max(lengths) + choice.draw(st.integers(0, 5))
    starts = [choice.draw(st.integers(0, width - length)) for length in lengths]
    spans = [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]

    def place(x):
        placed = torch.full((len(lengths), width), 0 if x.dtype == torch.bool else 7.7, dtype=x.dtype)
        for row, span in enumerate(spans):
            placed[row, span] = x[row, : lengths[row]]
        return placed

    moved = {key: place(x) if isinstance(x, torch.Tensor) and x.ndim == 2 else x for key, x in data.items()}
    one, other = evaluate(METHODS[name], data), evaluate(METHODS[name], moved)
    assert other.gradient[~moved["mask"]].eq(0).all()
    # On the responses: the gradients, moved to where the tokens are now.
    placed = {key: place(x) * moved["mask"] for key, x in one._asdict().items() if key.endswith("gradient")}
    assert_same(one._replace(**placed), other)
    assert other.metrics == pytest.approx(one.metrics, abs=1e-10)
