"""TRL's GRPOTrainer on the same tensors: loss, gradient and clip fractions."""

import functools
import warnings

import pytest
import torch

from policygrain import method

from ..support.batches import evaluate, random_fields

L_MAX = 12


@pytest.fixture(scope="module")
def trl_loss():
    """TRL's loss without its trainer."""
    pytest.importorskip("trl", reason="TRL is not installed: no peer to compare with (pip install '.[dev]')")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions of vLLM, which plays no part in the loss
        import trl  # noqa: F401

        from ..support.trainer_losses import trl_loss
    return functools.partial(trl_loss, max_length=L_MAX)


TO_INITIAL = {"name": "kl", "coefficient": 0.1, "reference": "initial"}
WIDE, NARROW = (0.2, 0.28), (3e-4, 4e-4)


def named(x) -> str:
    if not hasattr(x, "penalties"):
        return " ".join(map(str, x.values()))
    return f"{x.name}{'+kl' if x.penalties else ''}{'+mask' if x.off_policy_bound else ''}"


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (method("grpo"), {"loss_type": "grpo"}),
        (method("grpo_clip_higher"), {"loss_type": "grpo", "clip": WIDE}),
        (method("grpo", penalties=[TO_INITIAL]), {"loss_type": "grpo", "beta": 0.1}),
        (
            method("grpo", penalties=[TO_INITIAL | {"times_ratio": True}]),
            {"loss_type": "grpo", "beta": 0.1, "times_ratio": True},
        ),
        (method("grpo", clip={"dual": 1.5}), {"loss_type": "grpo", "delta": 1.5}),
        (method("dr_grpo"), {"loss_type": "dr_grpo"}),
        (method("dapo"), {"loss_type": "dapo", "clip": WIDE}),
        (method("dapo", off_policy_bound=0.05), {"loss_type": "dapo", "clip": WIDE, "off_policy": 0.05}),
        (method("dapo", penalties=[TO_INITIAL]), {"loss_type": "dapo", "clip": WIDE, "beta": 0.1}),
        (method("gspo"), {"loss_type": "grpo", "level": "sequence", "clip": NARROW}),
        (method("tepo_v1"), {"loss_type": "dapo", "level": "sequence", "clip": WIDE}),
        (method("luspo"), {"loss_type": "luspo", "level": "sequence", "clip": (2e-3, 2.5e-3)}),
        (method("cispo", clip={"cap": 1.5}), {"loss_type": "cispo", "clip": (0.2, 1.5)}),
        (method("sapo"), {"loss_type": "sapo"}),
        (method("vespo"), {"loss_type": "vespo"}),
    ],
    ids=named,
)
def test_trl_has_the_same_loss_and_gradient(trl_loss, ours, theirs, seed):
    drift = {"gspo": 3e-3, "luspo": 1e-2}.get(ours.name, 0.6)
    fields = random_fields([9, 4, 1, 7, 6, 2], seed, drift) | {"max_length": L_MAX}
    if ours.off_policy_bound is not None:  # measured from another policy than the old one
        fields["rollout_log_probs"] = fields["old_log_probs"] + 0.1
    out = evaluate(ours, fields)
    assert ours.off_policy_bound is None or 0 < out.metrics["off_policy_masked_share"] < 1
    loss, gradient, metrics = trl_loss(fields, **theirs)
    assert ours.name in ("sapo", "vespo") or out.metrics["clip_fraction_low"] + out.metrics["clip_fraction_high"] > 0
    torch.testing.assert_close(out.loss, loss, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(out.gradient, gradient, rtol=1e-6, atol=1e-9)
    if (
        "clip_ratio/low_mean" in metrics and theirs.get("level") != "sequence" and "delta" not in theirs
    ):  # there TRL counts responses, and no dual clip
        assert out.metrics["clip_fraction_low"] == pytest.approx(metrics["clip_ratio/low_mean"][0])
        assert out.metrics["clip_fraction_high"] == pytest.approx(metrics["clip_ratio/high_mean"][0])
