"""prime-rl: a custom loss, `import_path = "policygrain_lab.prime_rl.loss"` (lab/README.md).

prime-rl divides the sum by the number of tokens of the step, so methods with a mean over tokens are exact. Nothing of
prime-rl is imported: inputs and outputs are objects with the names that it uses.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from policygrain.integrations.options import NEEDS, chosen, reads_entropies, refuse, warn_sampler
from policygrain.objective import Method
from policygrain.objective.batch import StepTotals, TokenBatch


def loss(inputs: Any, objective: str | Method = "dapo") -> SimpleNamespace:
    """The method's loss of one response: `.loss`, a sum over its tokens with gradient, and `.metrics`, tensors.

    ``inputs`` has `trainer_logprobs`, `inference_logprobs`, `advantages` and `loss_mask`, [tokens] each, and perhaps
    `ref_logprobs` and `loss_weights`. UnsupportedOption for methods that prime-rl cannot express.
    """
    resolved = _usable(objective)

    def row(name: str, *default: None) -> Any:
        """[tokens] → [1, tokens]."""
        tensor = getattr(inputs, name, *default)
        return None if tensor is None else tensor.unsqueeze(0)

    names = ("trainer_logprobs", "inference_logprobs", "advantages", "loss_mask")
    now, old, advantages, mask = (row(name) for name in names)
    others = {"ref_log_probs": row("ref_logprobs", None), "rollout_weights": row("loss_weights", None)}
    batch = TokenBatch(now, old, advantages, mask, rollout_log_probs=old, **others)
    length = int(batch.lengths.clamp(min=1))
    # A sum over tokens, which prime-rl divides by the number of tokens of the step.
    out = resolved.loss(batch.replace(step=StepTotals(n_tokens=1, n_responses=1, max_length=batch.mask.shape[1])))
    shown = {
        "clip_fraction": out.metrics["clip_fraction_low"] + out.metrics["clip_fraction_high"],
        "ratio_mean": out.metrics["ratio_mean"],
        "kl_old": out.metrics["kl_old"],
    }
    named = {f"policygrain/{name}": out.loss.detach().new_tensor(total / length) for name, total in shown.items()}
    return SimpleNamespace(loss=out.loss, metrics=named)


@functools.cache
def _usable(objective: str | Method) -> Method:
    """The method, checked once. UnsupportedOption if prime-rl cannot express it."""
    resolved = chosen(objective)
    wrong = []
    if (name := resolved.aggregation.name) != "token_mean":
        wrong.append(f"its aggregation is {name}, and prime-rl divides a sum over tokens by their number.")
    if reads_entropies(resolved):
        wrong.append("its mask needs entropies, or covariances over the step, and prime-rl gives neither to a loss.")
    # prime-rl computes one response at a time, so it has no groups and no statistics of the step.
    refuse(resolved, "prime-rl", [need for need in NEEDS if need != "reference"], wrong)
    warn_sampler(resolved)
    return resolved
