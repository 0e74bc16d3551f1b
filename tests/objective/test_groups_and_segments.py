"""Functions over groups and segments: arithmetic in the open, and what they must be equal to (float64)."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import StepTotals, TokenBatch, method
from policygrain.objective.batch import Responses
from policygrain.objective.ratio import Block, GroupExpectation

from ..support.batches import assert_same, by_hand, close, evaluate, few, fields

GROUPS = torch.tensor([7, 7, 2])

# ---- by hand --------------------------------------------------------------------------------------------------------


def test_the_mean_over_prompts_is_that_of_the_tokens_of_each_prompt():
    """Prompt 7 has 2 + 1 tokens with u = 1, 1, 2, prompt 2 has one with u = 5: (4/3 + 5) / 2."""
    batch = by_hand([[0.0, 0.0]] * 3, [1.0, 2.0, 5.0], [[1, 1], [1, 0], [1, 0]], groups=GROUPS)
    close(method("reinforce", aggregation="prompt_mean").loss(batch).loss, -(4 / 3 + 5) / 2)


def test_the_ratio_to_the_expectation_of_the_group():
    """q = e^−1 and e^−2, E_q[q] = Σq²/Σq; p of the first is e^(−1+0.3)."""
    old = torch.tensor([[-1.0, -1.0], [-3.0, -1.0], [-2.0, -2.0]], dtype=torch.float64)
    moved = torch.tensor([[0.4, 0.2], [0.0, 0.0], [0.1, 0.1]], dtype=torch.float64)
    batch = TokenBatch(old + moved, old, torch.ones(3).double(), torch.ones(3, 2), groups=GROUPS)
    q = exp(-1), exp(-2)
    expected = log((q[0] ** 2 + q[1] ** 2) / (q[0] + q[1]))
    close(GroupExpectation()(batch), [[-0.7 - expected] * 2, [-2 - expected] * 2, [0.1] * 2])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("uniform", [0.2, 0.2, 0.5]),
        ("joint", [0.4, 0.4, 0.5]),
        ("future", [0.7 * 0.1 + 0.3 * 0.3, 0.7 * 0.3 + 0.3 * 0.1, 0.5]),
    ],
)
def test_segments_are_blocks_of_unequal_sizes(weights, expected):
    """Segments of two tokens and of one; numbers are names alone, and padding has none."""
    numbers = torch.tensor([[9, 9, 4, 4]])
    batch = by_hand([[0.1, 0.3, 0.5, 9.0]], [1.0], [[1, 1, 1, 0]], segments=numbers)
    close(Block(layout="segments", weights=weights)(batch)[:, :3], [expected])


# ---- identities -----------------------------------------------------------------------------------------------------


@few
@given(data=fields(min_live=1))
def test_one_prompt_is_the_token_mean_and_one_response_a_prompt_the_sequence_mean(data):
    rows = len(data["mask"])
    one = data | {"groups": torch.zeros(rows, dtype=torch.long)}
    assert_same(evaluate(method("dapo", aggregation="prompt_mean"), one), evaluate(method("dapo"), data))
    each = data | {"groups": torch.arange(rows)}
    grpo = method("grpo_clip_higher")
    assert_same(evaluate(method("dapo", aggregation="prompt_mean"), each), evaluate(grpo, data))


@few
@given(data=fields(min_live=1))
def test_a_group_of_one_response_expects_that_response(data):
    """E_q[q] = q, so GEPO's ratio is GSPO's."""
    each = data | {"groups": torch.arange(len(data["mask"]))}
    assert_same(evaluate(method("gepo"), each), evaluate(method("grpo", ratio="sequence"), data))


@few
@given(data=fields(), size=st.integers(1, 5), weights=st.sampled_from(["uniform", "joint"]))
def test_segments_of_one_size_are_tiles(data, size, weights):
    segments = (data["mask"].cumsum(1) - 1).clamp(min=0) // size
    tiled = method("mpo", ratio={"layout": "tiled", "size": size, "weights": weights})
    own = method("mpo", ratio={"layout": "segments", "weights": weights})
    assert_same(evaluate(own, data | {"segments": segments}), evaluate(tiled, data))


@few
@given(data=fields())
def test_one_segment_is_the_sequence_and_one_token_the_token(data):
    uniform = method("dapo", ratio={"name": "block", "layout": "segments", "weights": "uniform"})
    whole = data | {"segments": torch.zeros_like(data["mask"], dtype=torch.long)}
    assert_same(evaluate(uniform, whole), evaluate(method("dapo", ratio="sequence"), data))
    each = data | {"segments": torch.arange(data["mask"].shape[1]).expand_as(data["mask"])}
    for weights in ("uniform", "joint", "future"):
        chosen = method("dapo", ratio={"name": "block", "layout": "segments", "weights": weights})
        assert_same(evaluate(chosen, each), evaluate(method("dapo"), data))


# ---- what is missing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "more", "says"),
    [
        (method("gepo"), {}, "needs `groups`"),
        (method("dapo", aggregation="prompt_mean"), {}, "needs `groups`"),
        (method("dapo", aggregation="prompt_mean"), {"groups": GROUPS, "step": StepTotals(3, 3, 1)}, "`responses`"),
        (
            method("gepo"),
            {"groups": GROUPS, "step": StepTotals(3, 3, 1, 2, Responses(GROUPS, torch.ones(3)))},
            "responses needs old_log_probs",
        ),
        (method("mpo", ratio={"layout": "segments"}), {}, "needs `segments`"),
        (method("reinforce", aggregation="turn_mean_token_mean"), {"step": StepTotals(3, 3, 1)}, "needs n_turns"),
        (method("bypass"), {}, "anchor: rollout needs rollout_log_probs"),
        (method("a3po"), {"staleness": torch.tensor([2, 2, 2])}, "anchor: loglinear needs rollout_log_probs"),
        (method("a3po"), {"rollout_log_probs": torch.zeros(3, 1)}, "anchor: loglinear needs staleness"),
    ],
)
def test_what_is_not_given_is_named(chosen, more, says):
    batch = by_hand([[0.1]] * 3, [1.0, -1.0, 1.0], **more)
    with pytest.raises(ValueError, match=says):
        chosen.loss(batch)
