"""prime-rl: a custom loss, `import_path = "policygrain.integrations.prime_rl.loss"` (docs/your-trainer.md).

prime-rl calls it for one response at a time and divides the sum by the number of tokens of the step, so methods with a
mean over tokens are exact. Nothing of prime-rl is imported: inputs and outputs are objects with the names that it uses.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ..objective import Method
from ..objective.batch import StepTotals, TokenBatch
from .options import NEEDS, chosen, reads_entropies, refuse, warn_sampler


def loss(inputs: Any, objective: str | Method = "dapo") -> SimpleNamespace:
    """The method's loss of one response: `.loss`, a sum over its tokens with gradient, and `.metrics`, tensors.

    ``inputs`` has `trainer_logprobs`, `inference_logprobs`, `advantages` and `loss_mask`, [tokens] each, and perhaps
    `ref_logprobs` and `loss_weights`. The policy that sampled is the inference engine's. ``objective`` is the name of a
    preset (`kwargs = { objective = "mpo" }`). UnsupportedOption for methods that prime-rl cannot express.
    """
    resolved = _usable(objective) if isinstance(objective, str) else _checked(objective)
    sampled = _row(inputs.inference_logprobs)
    batch = TokenBatch(
        _row(inputs.trainer_logprobs),
        sampled,
        _row(inputs.advantages),
        _row(inputs.loss_mask),
        rollout_log_probs=sampled,
        ref_log_probs=None if getattr(inputs, "ref_logprobs", None) is None else _row(inputs.ref_logprobs),
        rollout_weights=None if getattr(inputs, "loss_weights", None) is None else _row(inputs.loss_weights),
    )
    length = int(batch.lengths.clamp(min=1))
    # A sum over tokens, which prime-rl divides by the number of tokens of the step.
    out = resolved.loss(batch.replace(step=StepTotals(n_tokens=1, n_responses=1, max_length=batch.mask.shape[1])))
    clipped = out.metrics["clip_fraction_low"] + out.metrics["clip_fraction_high"]
    shown = {"clip_fraction": clipped / length, "ratio_mean": out.metrics["ratio_mean"] / length}
    shown["kl_old"] = out.metrics["kl_old"] / length
    named = {f"policygrain/{name}": out.loss.detach().new_tensor(value) for name, value in shown.items()}
    return SimpleNamespace(loss=out.loss, metrics=named)


@functools.cache
def _usable(objective: str) -> Method:
    return _checked(objective)


def _checked(objective: str | Method) -> Method:
    resolved = chosen(objective)
    aggregation = resolved.aggregation.name
    wrong = {
        f"its aggregation is {aggregation}, and prime-rl divides a sum over tokens by their number.": (
            aggregation != "token_mean"
        ),
        "its mask needs entropies, or covariances over the step, and prime-rl gives neither to a loss.": (
            reads_entropies(resolved)
        ),
    }
    # prime-rl computes one response at a time, so it has no groups and no statistics of the step.
    refuse(resolved, "prime-rl", [need for need in NEEDS if need != "reference"], wrong)
    warn_sampler(resolved)
    return resolved


def _row(x: Tensor) -> Tensor:
    """[tokens] → [1, tokens]."""
    return x.unsqueeze(0)
