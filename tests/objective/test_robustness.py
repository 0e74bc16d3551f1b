"""Gradients against finite differences, half precision, empty batches, extreme ratios, wrong shapes."""

import math

import pytest
import torch

from policygrain import StepTotals, TokenBatch, method
from policygrain.objective import method_names
from policygrain.objective.batch import PER_RESPONSE, PER_TOKEN, REQUIRED, Responses
from policygrain.objective.ratio import Block, SequenceRatio

from ..support.batches import METHODS, WITH_GRADIENT, by_hand, evaluate, random_fields

LENGTHS = (5, 3, 1, 4)
# How far the policy has drifted: enough for some tokens to be clipped and others not.
DRIFT = {"gspo": 1e-3, "luspo": 3e-3, "prefix_is": 0.3, "mpo_joint": 0.3}
# What a finite difference cannot see: the stop-gradient of `none`, and the detached tokens of Clip-Cov.
CHANGES = {"clip_cov": {"clip": {"fraction": 0.0}}, "kl_cov": {"penalties": [{"name": "kl_cov", "fraction": 0.3}]}}


# Whose values are not the integrals of their gradients: constant weights and anchors, and each token's own gradient.
STOPPED = ("reinforce", "gspo_token", "cispo", "vespo", "minirl", "dro", "topr", "a3po")


@pytest.mark.parametrize("name", [name for name in method_names() if name not in STOPPED])
def test_gradient_is_the_finite_difference(name):
    chosen = method(name, **CHANGES.get(name, {}))
    fields = random_fields(LENGTHS, seed=1, drift=DRIFT.get(name, 0.8))
    inputs = [fields.pop(key).requires_grad_() for key in WITH_GRADIENT]

    def loss(*inputs):
        return chosen.loss(TokenBatch(**dict(zip(WITH_GRADIENT, inputs, strict=True)), **fields))

    # Some tokens are clipped and some are not; and none is where the loss has a kink, or the difference would be wrong.
    metrics = loss(*inputs).metrics
    clipped = metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
    assert name in ("kl_cov", "sapo") or 0 < clipped < 1, "these clip nothing"
    assert torch.autograd.gradcheck(lambda *x: loss(*x).loss, inputs, eps=1e-7, atol=1e-7, rtol=1e-5)


every_method = pytest.mark.parametrize("name", METHODS)


def cast(fields, dtype):
    return {k: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for k, x in fields.items()}


@every_method
def test_half_precision_is_computed_in_float32(name):
    half = cast(random_fields([40, 25, 0, 3], seed=0), torch.bfloat16)
    one, other = evaluate(METHODS[name], half), evaluate(METHODS[name], cast(half, torch.float32))
    assert one.loss.dtype == torch.float32
    assert one.loss == other.loss and one.metrics == other.metrics
    # The gradient goes back in the precision of the input, rounded once.
    assert torch.equal(one.gradient, other.gradient.bfloat16())


@every_method
def test_a_batch_without_tokens_has_loss_and_gradient_zero(name):
    out = evaluate(METHODS[name], random_fields([0, 0], seed=3, width=4))
    assert out.loss == 0
    assert not out.gradient.any() and not out.entropy_gradient.any()  # NaN would be any()
    assert all(value == 0 for value in out.metrics.values())


@every_method
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_ratios_stay_finite_in_single_precision(name, sign):
    fields = cast(random_fields([3, 4], seed=5), torch.float32)
    fields["log_probs"] = fields["old_log_probs"] + sign * 80
    fields["future_log_probs"] = fields["old_future_log_probs"] + sign * 400
    fields["ref_log_probs"] = fields["log_probs"] + 200  # exp(200) would overflow, too
    fields["advantages"] = torch.tensor([1.0, -1.0])
    out = evaluate(METHODS[name], fields)
    assert torch.isfinite(out.loss) and torch.isfinite(out.gradient).all()
    assert {key: value for key, value in out.metrics.items() if not math.isfinite(value)} == {}
    # Σ_k ±80 of four tokens would be exp(±320); the ratio stops at exp(±80), and a truncated one at its cap of 2.
    expected = {"reinforce": 1, "dro": 1, "reinforce + truncated product": min(2, math.exp(sign * 80))}
    assert out.metrics["ratio_max"] == pytest.approx(expected.get(name, math.exp(sign * 80)), rel=1e-4)


def test_the_variance_of_ratios_near_one_survives_single_precision():
    """GSPO's ratios differ from 1 in the fourth decimal: 1 ± 3e-4 and a variance of 9e-8."""
    small = torch.tensor([[3e-4, -3e-4] * 500])
    batch = TokenBatch(small, torch.zeros_like(small), torch.ones(1), torch.ones(1, 1000))
    metrics = method("grpo").loss(batch).metrics
    assert metrics["ratio_variance"] == pytest.approx(9e-8, rel=0.01)


@pytest.mark.parametrize("layout", ["sliding", "tiled"])
def test_a_window_far_into_a_long_response_keeps_its_digits(layout):
    """Running sums of 30,000 log-ratios come to hundreds, and a window's to hundredths."""
    drifting = 0.02 + 0.01 * torch.randn((1, 30_000), generator=torch.Generator().manual_seed(0))
    block = Block(size=8, layout=layout)
    log_r = block(off_by(drifting))
    exact = block(off_by(drifting[:, -800:].double()))  # 30,000 − 800 ends a tile
    assert log_r.dtype == torch.float32
    torch.testing.assert_close(log_r[:, -800:], exact.float(), rtol=1e-6, atol=1e-9)


def test_the_stop_gradient_leaves_the_ratio_as_it_is_in_single_precision():
    batch = off_by(torch.randn(50, 20, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(SequenceRatio(stop_gradient=True)(batch), SequenceRatio()(batch))


def off_by(log_ratio: torch.Tensor) -> TokenBatch:
    """A batch of this log-ratio, without padding."""
    return TokenBatch(log_ratio, torch.zeros_like(log_ratio), torch.zeros_like(log_ratio), torch.ones_like(log_ratio))


@pytest.mark.parametrize("name", [*PER_TOKEN[1:], *PER_RESPONSE, "mask", "groups"])
@pytest.mark.parametrize("shape", [(2, 4), (3, 5), (5,), (2, 5, 1), ()])
def test_a_wrong_shape_is_named(name, shape):
    fields = random_fields([5, 2], seed=6)
    with pytest.raises(ValueError, match=f"^{name} has shape"):
        TokenBatch(**{**fields, name: torch.ones(shape)})
    with pytest.raises(ValueError, match=r"^log_probs must be"):
        TokenBatch(**fields | {"log_probs": torch.ones(5)})


@pytest.mark.parametrize("name", REQUIRED)
def test_a_field_that_is_missing_is_named(name):
    fields = random_fields([3, 2], seed=0) | {name: None}
    with pytest.raises(ValueError, match=f"^{name} must be a tensor, got NoneType"):
        TokenBatch(**fields)


def test_a_mask_of_weights_is_refused():
    """0 and 1 as numbers are a mask; 0.5 would silently be 1."""
    fields = random_fields([3, 2], seed=0)
    assert TokenBatch(**fields | {"mask": fields["mask"].double()}).mask.dtype == torch.bool
    with pytest.raises(ValueError, match="mask has other values than 0 and 1"):
        TokenBatch(**fields | {"mask": 0.5 * fields["mask"]})


GROUPS = torch.tensor([7, 7, 2])


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
