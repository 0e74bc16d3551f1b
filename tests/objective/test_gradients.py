"""Gradients against finite differences, and the lemmas behind TEPO's mask."""

import pytest
import torch

from policygrain import TokenBatch, method
from policygrain.objective import method_names, penalty
from policygrain.objective.clip import token_covariance

from ..support.batches import WITH_GRADIENT, random_fields

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
    assert torch.autograd.gradcheck(
        lambda *x: loss(*x).loss, inputs, eps=1e-7, atol=1e-7, rtol=1e-5, raise_exception=True
    )


def test_reinforce_has_the_gradient_of_advantage_times_log_probability():
    fields = random_fields(LENGTHS, seed=1)
    log_probs = fields.pop("log_probs").requires_grad_()
    loss = method("reinforce").loss(TokenBatch(log_probs=log_probs, **fields)).loss
    expected = torch.zeros_like(log_probs)
    for row, length in enumerate(LENGTHS):
        expected[row, :length] = -fields["advantages"][row] / sum(LENGTHS)
    torch.testing.assert_close(torch.autograd.grad(loss, log_probs)[0], expected)
    torch.testing.assert_close(loss.item(), expected.sum().item())


# A softmax policy over four actions, and a batch that holds each action as often as the policy takes it, so that
# means over the batch are expectations under the policy.
COUNTS = (4, 2, 1, 1)
ACTIONS = torch.tensor([action for action, count in enumerate(COUNTS) for _ in range(count)])
LOGITS = torch.tensor(COUNTS, dtype=torch.float64).log()
POSITIVE, NEGATIVE = (1.0, 0.2, -0.7, -1.0), (-1.0, -0.4, 0.9, 1.5)  # likely actions are good; are bad


def entropy_of(logits):
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum()


def natural_gradient_and_covariance(advantages):
    """F⁺ ∇J, the gradient being that of the package's loss; and the package's covariance, averaged."""
    logits = LOGITS.clone().requires_grad_()
    log_probs = logits.log_softmax(-1)[ACTIONS].unsqueeze(1)
    batch = TokenBatch(log_probs, log_probs.detach(), torch.tensor(advantages)[ACTIONS].double(), torch.ones(8, 1))
    gradient = -torch.autograd.grad(method("reinforce").loss(batch).loss, logits)[0]
    p = LOGITS.softmax(-1)
    fisher = p.diag() - p.outer(p)
    return torch.linalg.pinv(fisher, hermitian=True) @ gradient, token_covariance(batch).mean(), batch


@pytest.mark.parametrize("advantages", [POSITIVE, NEGATIVE])
def test_entropy_changes_by_the_covariance_to_first_order(advantages):
    step, covariance, _ = natural_gradient_and_covariance(advantages)
    p = LOGITS.softmax(-1)
    values = torch.tensor(advantages, dtype=torch.float64)
    by_definition = (p * p.log() * values).sum() - (p * p.log()).sum() * (p * values).sum()
    torch.testing.assert_close(covariance, by_definition)

    def error(eta):
        return (entropy_of(LOGITS + eta * step) - entropy_of(LOGITS) + eta * covariance).item()

    assert abs(error(1e-3)) < 1e-2 * 1e-3 * abs(covariance.item())  # the first order is right …
    assert error(1e-3) / error(5e-4) == pytest.approx(4, rel=0.01)  # … and what is left is of the second


def test_the_mask_marks_the_rewarded_actions_that_narrow_the_policy():
    *_, batch = natural_gradient_and_covariance((1.0, -1.0, 1.0, -1.0))
    # Mean advantage ¼, mean log p between those of actions 0 and 1: of the rewarded actions 0 and 2 it is the likely
    # one whose reinforcement lowers the entropy.
    assert penalty.entropy_drop_mask(batch, "covariance").squeeze(1).tolist() == [a == 0 for a in ACTIONS.tolist()]
