"""Groups, and turns, the unbroken runs of the mask: by hand and identities (float64)."""

from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain import StepTotals, TokenBatch, method
from policygrain.objective.batch import Responses, turn_numbers
from policygrain.objective.ratio import Block, GroupExpectation

from ..support.batches import assert_same, by_hand, close, evaluate, few, fields
from . import BY_HAND

GROUPS = torch.tensor([7, 7, 2])
TURNS = {"name": "block", "layout": "turns", "weights": "uniform"}


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_the_ratio_to_the_expectation_of_the_group():
    """q = e^−1 and e^−2, E_q[q] = Σq²/Σq; p of the first is e^(−1+0.3)."""
    old = torch.tensor([[-1.0, -1.0], [-3.0, -1.0], [-2.0, -2.0]], dtype=torch.float64)
    moved = torch.tensor([[0.4, 0.2], [0.0, 0.0], [0.1, 0.1]], dtype=torch.float64)
    batch = TokenBatch(old + moved, old, torch.ones(3).double(), torch.ones(3, 2), groups=GROUPS)
    q = exp(-1), exp(-2)
    expected = log((q[0] ** 2 + q[1] ** 2) / (q[0] + q[1]))
    close(GroupExpectation()(batch), [[-0.7 - expected] * 2, [-2 - expected] * 2, [0.1] * 2])


@pytest.mark.parametrize(("weights", "expected"), BY_HAND["turns"])
def test_turns_are_blocks_of_unequal_sizes(weights, expected):
    """Turns of two tokens and of one, with tool output between them."""
    batch = by_hand([[0.1, 0.3, 9.0, 0.5, 9.0]], [1.0], [[1, 1, 0, 1, 0]])
    close(Block(layout="turns", weights=weights)(batch)[batch.mask], expected)


def test_turns_are_numbered_from_the_first():
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    assert turn_numbers(mask).tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1], [0] * 5, [0] * 5]


@pytest.mark.parametrize(
    ("chosen", "more", "says"),
    [
        (method("gepo"), {}, "needs `groups`"),
        (method("gepo"), {"groups": GROUPS, "step": StepTotals(3, 3, 1)}, "`responses`"),
        (
            method("gepo"),
            {"groups": GROUPS, "step": StepTotals(3, 3, 1, Responses(GROUPS, torch.ones(3)))},
            "responses needs old_log_probs",
        ),
        (method("bypass"), {}, "anchor: rollout needs rollout_log_probs"),
        (method("a3po"), {"staleness": torch.tensor([2, 2, 2])}, "anchor: loglinear needs rollout_log_probs"),
        (method("a3po"), {"rollout_log_probs": torch.zeros(3, 1)}, "anchor: loglinear needs staleness"),
    ],
)
def test_what_is_not_given_is_named(chosen, more, says):
    batch = by_hand([[0.1]] * 3, [1.0, -1.0, 1.0], **more)
    with pytest.raises(ValueError, match=says):
        chosen.loss(batch)


# ---- turns ----------------------------------------------------------------------------------------------------------


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
