"""What must be equal to what, in value and in gradient, whatever the numbers (float64)."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain import Method, TokenBatch, method
from policygrain.objective.clip import Likelihood, Topr
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


def as_given(data):
    return data


def on_policy(data):
    return data | {"log_probs": data["old_log_probs"]}


def sampled_by_old(data):
    """The engine's probabilities are those of the old policy."""
    return data | {"old_log_probs": data["rollout_log_probs"]}


def negative(data):
    return data | {"advantages": -data["advantages"].abs()}


def near(data):
    """Log-ratios a hundredth as large."""
    old = data["old_log_probs"]
    return data | {"log_probs": old + 0.01 * (data["log_probs"] - old)}


def one_group(data):
    return data | {"groups": torch.zeros(len(data["mask"]), dtype=torch.long)}


def groups_of_one(data):
    return data | {"groups": torch.arange(len(data["mask"]))}


def one_segment(data):
    return data | {"segments": torch.zeros_like(data["mask"], dtype=torch.long)}


def segments_of_one(data):
    return data | {"segments": torch.arange(data["mask"].shape[1]).expand_as(data["mask"])}


class Same(NamedTuple):
    """``one`` of the batch that ``given`` makes is ``other``, of what ``and_of`` makes of it."""

    one: Method
    other: Method
    given: Callable = as_given
    and_of: Callable = as_given
    gradient_alone: float | None = None  # tolerance of the gradient where the values differ
    tolerance: float = 1e-10


KL_OFF = {"name": "kl", "reference": "old", "mask": "positive_advantage_entropy_drop", "coefficient": 0.0}
NO_SAMPLER = {"dynamic": False, "overlong_buffer": 0.0}
TILE = {"name": "block", "size": 9, "layout": "tiled", "weights": "uniform"}  # at least the longest response
JOINT = TILE | {"size": 20, "weights": "joint", "edges": "normalised"}
STOPPED = {"name": "sequence", "stop_gradient": True}  # GSPO-token
RATIOS = [(TILE, "sequence"), (TILE | {"size": 30}, "sequence"), (JOINT, "product"), (STOPPED, "sequence")]
OWN_GRADIENT = ["product", {"name": "product", "cap": 1.0}, {"name": "prefix", "gradient": "own"}]
SEGMENTS = {"name": "block", "layout": "segments", "weights": "uniform"}
SOFT = ["gspo_token", "gmpo", "luspo", "cispo", "vespo", "sapo", "dppo_tv", "dppo_kl", "minirl", "fipo", "dro"]
WIDE = {"low": 1e9, "high": 1e9}
MASKED = {"name": "likelihood", "low": 0.8, "cap": 1.28, "outside": "mask"}
FLAT = {f"{sign}_{key}": 0.0 for sign in ("positive", "negative") for key in ("power", "decay")}
LINEAR = FLAT | {"positive_power": 1.0, "negative_power": 1.0}


def holder(power: float) -> Method:
    return method("grpo", ratio={"name": "holder", "power": power}, clip=None)


SAME = [
    # Presets that differ in a setting.
    Same(method("tepo", penalties=[KL_OFF]), method("tepo_v1")),
    Same(method("tepo_max_entropy", penalties=[{"name": "entropy_bonus", "coefficient": 0.0}]), method("tepo_v1")),
    Same(method("tepo_v1", aggregation="seq_mean_token_mean", clip={"low": 3e-4, "high": 4e-4}), method("gspo")),
    Same(method("dapo", aggregation="seq_mean_token_mean", clip={"high": 0.2}, sampler=NO_SAMPLER), method("grpo")),
    Same(method("mpo", ratio={"size": 3}), method("mpo_k3")),
    Same(method("mpo_tepo", ratio="sequence"), method("tepo")),
    Same(method("gspo", clip={"low": 0.05, "high": 0.07}), method("gspo_token", clip={"low": 0.05, "high": 0.07})),
    # Ratios.
    *(Same(*(method("tepo", aggregation=a, ratio=r) for r in pair)) for pair in RATIOS for a in AGGREGATIONS),
    *(
        Same(method("dapo", aggregation=a, ratio=r), method("dapo", aggregation=a), on_policy, on_policy)
        for r in OWN_GRADIENT
        for a in AGGREGATIONS
    ),
    Same(holder(1), method("grpo", clip=None)),
    Same(holder(0), method("gspo", clip=None)),
    *(Same(holder(power), method("gspo", clip=None), tolerance=1e-5) for power in (1e-7, -1e-7)),
    # Groups and segments.
    Same(method("dapo", aggregation="prompt_mean"), method("dapo"), one_group),
    Same(method("dapo", aggregation="prompt_mean"), method("grpo_clip_higher"), groups_of_one),
    Same(method("gepo"), method("grpo", ratio="sequence"), groups_of_one),
    Same(method("dapo", ratio=SEGMENTS), method("dapo", ratio="sequence"), one_segment),
    *(
        Same(method("dapo", ratio=SEGMENTS | {"weights": weights}), method("dapo"), segments_of_one)
        for weights in ("uniform", "joint", "future")
    ),
    # Clips.
    Same(
        method("cispo", clip=Topr(cap=1.5).data()), method("cispo", clip=Likelihood(cap=1.5).data()), negative, negative
    ),
    Same(method("dapo", clip={"name": "m2po", "budget": 1e6}), method("dapo", clip=None)),
    Same(method("dapo", off_policy_bound=1e9), method("dapo")),
    Same(method("gmpo", clip=WIDE), method("gspo", clip=None)),
    *(Same(method(name, clip=WIDE), method("dapo", clip=None)) for name in ("dppo_tv", "dppo_kl")),
    Same(method("fipo", clip={"least": 1.0, "largest": 1.0, "safety": 1e9}), method("dapo", clip={"dual": 10.0})),
    Same(method("cispo", clip={"cap": None}), method("dapo", clip=None), gradient_alone=1e-7),
    Same(method("dapo", clip=MASKED), method("dapo"), gradient_alone=1e-7),
    Same(method("sapo", clip={"positive": 1e-7, "negative": 1e-7}), method("grpo", clip=None), gradient_alone=1e-5),
    # VESPO's λ is at least 1e-4.
    Same(method("vespo", clip=FLAT), method("reinforce"), near, near, gradient_alone=1e-4),
    Same(method("vespo", clip=LINEAR), method("dapo", ratio="product", clip=None), near, near, gradient_alone=1e-4),
    *(
        Same(method(name), method("reinforce", aggregation=method(name).aggregation.data()), *[on_policy] * 2, 1e-7)
        for name in ("grpo", "gspo", "turn_ratio", *SOFT)
    ),
    # Anchors.
    Same(method("dapo", anchor="rollout"), method("dapo"), and_of=sampled_by_old),
    Same(method("kl_cov", anchor="rollout"), method("kl_cov"), and_of=sampled_by_old),
]


@pytest.mark.parametrize("same", SAME)
@few
@given(data=fields(min_live=1))
def test_two_methods_are_the_same(same, data):
    assert same.given is not as_given or same.one.advantage == same.other.advantage
    one, other = evaluate(same.one, same.given(data)), evaluate(same.other, same.and_of(data))
    if same.gradient_alone is None:
        assert_same(one, other, same.tolerance)
    else:
        torch.testing.assert_close(one.gradient, other.gradient, rtol=same.gradient_alone, atol=same.gradient_alone)


@few
@given(data=fields(), size=st.integers(1, 5), weights=st.sampled_from(["uniform", "joint"]))
def test_segments_of_one_size_are_tiles(data, size, weights):
    segments = (data["mask"].cumsum(1) - 1).clamp(min=0) // size
    tiled = method("mpo", ratio={"layout": "tiled", "size": size, "weights": weights})
    own = method("mpo", ratio={"layout": "segments", "weights": weights})
    assert_same(evaluate(own, data | {"segments": segments}), evaluate(tiled, data))


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
