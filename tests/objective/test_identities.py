"""What must be equal to what, in value and in gradient, whatever the numbers (float64)."""

import dataclasses
import math
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain import TokenBatch, method
from policygrain.objective import Sampler
from policygrain.objective.loss import rollout_weights
from policygrain.objective.method import resolved_methods
from policygrain.objective.ratio import Block, TokenRatio
from policygrain.objective.terms import DrGrpo, Grpo, Rloo

from ..support.batches import METHODS, assert_same, close, evaluate, few, fields, tensor

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


# ---- turns of a response, and rollouts of another policy -------------------------------------------------------------

TURNS = {"name": "block", "layout": "turns", "weights": "uniform"}


def with_tool_output(data, seed):
    """Tool output in some places of the masks, also at a beginning; of the first token if none would be left."""
    keep = torch.rand(data["mask"].shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask = data["mask"] & keep
    return data | {"mask": mask if mask.any() else data["mask"]}


with_tools = st.builds(with_tool_output, fields(min_live=1), st.integers(0, 1000))


@few
@given(data=with_tools)
def test_normalised_each_token_has_the_gradient_of_the_turn_once(data):
    """The product over the turn is a weight of each token's ∇ log π; geometric means change nothing."""
    batch = TokenBatch(**data)
    weight = batch.sum_over_blocks(batch.log_ratio, None).exp()
    expected = -weight * batch.advantages * batch.mask / batch.whole.n_tokens
    joint = method("dapo", ratio={**TURNS, "weights": "joint", "edges": "normalised"}, clip=None)
    torch.testing.assert_close(evaluate(joint, data).gradient, expected)
    plain, normalised = (
        evaluate(method("dapo", ratio={**TURNS, "edges": edges}), data) for edges in ("as_published", "normalised")
    )
    assert_same(plain, normalised)


@few
@given(seed=st.integers(0, 1000), length=st.integers(1, 3))
def test_uncapped_sequence_weights_are_unbiased(seed, length):
    """Over all responses to a prompt Σ μ w f = Σ π f for any f. With a cap, the expected weight is at most 1."""
    generator = torch.Generator().manual_seed(seed)
    # Every response of at most ``length`` tokens among 0, 1 and 2, of which 0 ends it.
    cut = (tokens[: tokens.index(0) + 1] if 0 in tokens else tokens for tokens in product(range(3), repeat=length))
    responses = list(dict.fromkeys(cut))
    mask = torch.tensor([[t < len(r) for t in range(length)] for r in responses])

    def policy():
        """Log-probabilities of the tokens of each response; a token's distribution depends on those before it."""
        prefixes = dict.fromkeys(r[:t] for r in responses for t in range(len(r)))
        after = {p: torch.log_softmax(torch.randn(3, generator=generator).double(), 0) for p in prefixes}
        rows = [[float(after[r[:t]][r[t]]) if t < len(r) else 0.0 for t in range(length)] for r in responses]
        return torch.tensor(rows, dtype=torch.float64)

    log_pi, log_mu = policy(), policy()
    pi, mu = log_pi.sum(1).exp(), log_mu.sum(1).exp()
    f = torch.randn(len(responses), generator=generator).double()
    correction = rollout_weights(log_pi, log_mu, mask, Sampler(correction_cap=1e9, correction_grain="sequence"))[:, 0]
    close((mu * correction * f).sum(), (pi * f).sum())
    for outside in ("truncate", "mask"):
        settings = {"correction_cap": 1.2, "correction_grain": "sequence", "correction_outside": outside}
        bounded = rollout_weights(log_pi, log_mu, mask, Sampler(**settings))[:, 0]
        assert (mu * bounded).sum() <= 1 + 1e-9


@few
@given(data=fields(min_live=1), name=st.sampled_from(("a3po", "dapo", "kl_cov", "tepo")))
def test_the_ends_of_the_loglinear_anchor(data, name):
    """Up to one version it is the engine (α = 0), at infinite age the current policy (α = 1), of any method."""
    chosen = method(name, anchor="loglinear")
    engine = method(name, anchor="rollout", sampler={"correction_cap": None})
    for age in (0, 1):
        young = data | {"staleness": torch.full((len(data["mask"]),), age)}
        assert_same(evaluate(chosen, young), evaluate(engine, data))
    old = data | {"staleness": torch.full(data["mask"].shape, math.inf)}
    corrections = rollout_weights(data["log_probs"], data["rollout_log_probs"], data["mask"], chosen.sampler)
    on_policy = data | {"old_log_probs": data["log_probs"], "rollout_weights": corrections}
    assert_same(evaluate(chosen, old), evaluate(method(name, anchor="old"), on_policy))
    micro = [[row] for row in range(len(data["mask"]))]
    assert_same(evaluate(chosen, data, micro), evaluate(chosen, data))


# ---- advantages of a group ------------------------------------------------------------------------------------------

every_advantage = pytest.mark.parametrize("function", (Grpo(), DrGrpo(), Rloo()), ids=lambda part: part.name)
# Quarters are exact in floating point, and so are their sums; a spread is at least some quarters wide.
quarters = st.integers(-40, 40).map(lambda n: n / 4)
groups = st.integers(2, 8).flatmap(lambda size: st.lists(st.lists(quarters, min_size=size, max_size=size), min_size=1))


@every_advantage
@few
@given(rewards=groups, shift=quarters)
def test_a_group_sums_to_zero_and_a_shift_changes_nothing(function, rewards, shift):
    found = function(tensor(*rewards))
    torch.testing.assert_close(found.sum(1), torch.zeros(len(found)).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(function(tensor(*rewards) + shift), found, rtol=1e-12, atol=1e-12)


@every_advantage
@few
@given(
    reward=st.floats(-1e6, 1e6, width=32),
    size=st.integers(1, 17),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equal_rewards_have_exactly_zero(function, reward, size, dtype):
    rewards = torch.full((2, size), reward, dtype=dtype)
    rewards[1] = torch.arange(size) if size > 1 else 0.0  # a group beside it changes nothing
    assert function(rewards)[0].tolist() == [0.0] * size
    assert torch.isfinite(function(rewards)).all()


@every_advantage
@few
@given(place=st.integers(0, 3))
def test_a_reward_that_is_no_number_is_passed_on(function, place):
    """To its whole group, never as 0."""
    rewards = tensor(*[[0.0, 1.0, 2.0, 3.0]] * 2)
    rewards[0, place] = torch.nan
    found = function(rewards)
    assert found[0].isnan().all() and found[1].isfinite().all()


@few
@given(
    size=st.integers(2, 17),
    base=st.sampled_from([0.0, 1.0, 1e3, 1e6, 16_777_215.0]),
    raised=st.integers(1, 4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_normalised_advantage_is_bounded_by_the_size_of_the_group(size, base, raised, dtype):
    """|Â| ≤ (G − 1)/√G ≤ √(G − 1), also where some rewards differ from the others in the last digit."""
    rewards = torch.full((1, size), base, dtype=dtype)
    rewards[:, :raised] = torch.nextafter(rewards[:, :raised], torch.full_like(rewards[:, :raised], torch.inf))
    found = Grpo()(rewards).double()
    assert (found.abs() <= (size - 1) / size**0.5 * (1 + 1e-5)).all()


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
