"""Coefficients of all objectives on rollouts, without a model.

The update of every objective is Σ_t c_t ∇log π_t; c follows from log-probabilities, advantages and masks alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from policygrain.errors import UserError
from policygrain.integrations.options import NEEDS
from policygrain.objective import Method, comparison_names, method, method_names
from policygrain.objective.batch import Responses, StepTotals, TokenBatch
from policygrain.objective.clip import ClipCov
from policygrain.objective.loss import rollout_weights
from policygrain.objective.method import resolved_methods
from policygrain.objective.part import Custom
from policygrain.objective.terms import Grpo

from .calibrate import GRAINS, published_ranges
from .files import Rollouts, group_advantages

MANY_CHUNKS = 20  # from which progress is shown
CHUNK = 1 << 16  # tokens, padding included, whose coefficients are computed at a time
# Published corrections for an engine μ that is not π_old: bounds of the weights π_old/μ, and rejection.
CORRECTIONS: dict[str, dict[str, Any]] = {
    "token ≤ 2": {"correction_cap": 2.0},
    "token masked 0.5–5": {"correction_cap": 5.0, "correction_floor": 0.5, "correction_outside": "mask"},
    "token masked 0–5": {"correction_cap": 5.0, "correction_outside": "mask"},
    "sequence ≤ 2": {"correction_cap": 2.0, "correction_grain": "sequence"},
    "sequence masked 0–3": {"correction_cap": 3.0, "correction_grain": "sequence", "correction_outside": "mask"},
    "sequence ≤ 2, rejected outside 0.5–2": {
        "correction_cap": 2.0, "correction_grain": "sequence",
        "rejection_low": 0.5, "rejection_high": 2.0, "rejection_grain": "sequence",
    },
    "geometric masked 0.99–1.01": {
        "correction_cap": 1.01, "correction_floor": 0.99, "correction_grain": "geometric", "correction_outside": "mask"
    },
    "geometric rejected outside 0.999–1.001": {
        "rejection_low": 0.999, "rejection_high": 1.001, "rejection_grain": "geometric"
    },
}  # fmt: skip
_PROVIDED = {"reference": "ref_log_probs", "groups": "group", "staleness": "staleness"}
NO_ENGINE = "needs log-probabilities of the engine that sampled (rollout_log_probs) beside old_log_probs"


def objectives(rollouts: Rollouts, own: Mapping[str, Any] | None = None) -> tuple[dict[str, Method], dict[str, str]]:
    """(objectives by name, objectives that need data which the rollouts lack, with the reason).

    These are all presets, ratios, published clip ranges, corrections and the methods in ``own``; of several with equal
    definitions only the first is listed.
    """
    has_engine = "rollout_log_probs" in rollouts.tokens
    listed = {name: method(name) for name in method_names()} | resolved_methods(own or {})
    listed |= {name: method(name) for name in comparison_names() if not name.endswith("_clip")}
    for grain in GRAINS:
        for low, high in published_ranges(grain).values():
            listed[f"{grain} {low:g}/{high:g}"] = method(f"{grain}_clip", clip={"low": low, "high": high})
    listed |= {f"dapo, {name}": method("dapo", sampler=changes) for name, changes in CORRECTIONS.items()}
    chosen, left_out, seen = dict[str, Method](), dict[str, str](), set[str]()
    have = {"step_log_probs"} | {
        need for need, name in _PROVIDED.items() if name in rollouts.tokens | rollouts.responses
    }
    for name, one in listed.items():
        lacking = [NEEDS[need] for need in sorted(one.needs - have)]
        of_engine = {k: v for k, v in asdict(one.sampler).items() if k.startswith(("correction", "rejection"))}
        definition = repr((one.parts(), one.anchor, of_engine if has_engine else None))
        if (name.startswith("dapo, ") or one.anchor != "old") and not has_engine:
            left_out[name] = NO_ENGINE
        elif lacking:
            left_out[name] = f"needs {' and '.join(lacking)}"
        elif definition not in seen or name in (own or {}):
            chosen[name] = one
        seen.add(definition)
    return chosen, left_out


def coefficients(method: Method, batch: TokenBatch, seed: int) -> tuple[Tensor, Tensor | None, dict[str, float]]:
    """The coefficients c of the update Σ_t c_t ∇log π_t, and the metrics of the loss.

    Returns (−∂loss/∂log π, −∂loss/∂entropy or None if the loss does not read it, metrics). Both gradients are
    [batch, tokens]. Random choices of a loss are keyed by ``seed``.
    """
    if any(isinstance(part, ClipCov | Custom) for part in method.parts().values()):
        torch.manual_seed(seed)  # takes as long as a loss, so it is done only for parts that may draw random numbers
    leaves = {"log_probs": batch.log_probs.detach().clone().requires_grad_()}
    if "entropy_gradient" in method.needs:
        assert batch.entropy is not None
        leaves["entropy"] = batch.entropy.detach().clone().requires_grad_()
    out = method.loss(batch.replace(**leaves))
    # A custom loss may be constant on this batch.
    outputs = (-out.loss).sum() + sum(0 * leaf.sum() for leaf in leaves.values())
    gradients = torch.autograd.grad(outputs, list(leaves.values()))
    return gradients[0], gradients[1] if len(gradients) > 1 else None, out.metrics


class Work:
    """Coefficients of all objectives on the rollouts, some responses at a time.

    The rollouts of each value of `step` are one optimizer step, else all of them. ``own_advantages``: each objective
    computes its own from rewards and groups; else all take those of the rows, or GRPO's where rows have none.
    """

    def __init__(
        self, rollouts: Rollouts, own: Mapping[str, Any] | None = None, own_advantages: bool = False, seed: int = 0
    ) -> None:
        self.rollouts, self.seed = rollouts, seed
        self.methods, self.left_out = methods, _ = objectives(rollouts, own)
        responses, tokens = rollouts.responses, rollouts.tokens
        self.notes = list[str]()
        self.advantages: dict[str, Tensor] = {}  # kind of advantages → [all tokens]
        self.kinds = [repr(one.advantage) if own_advantages else "of the rows" for one in methods.values()]
        if own_advantages and not {"reward", "group"} <= responses.keys():
            raise UserError("--advantages method: needs `reward` and `group` in all rows.")
        if own_advantages and (rollouts.group_rewards()[1].bincount() == 1).any():
            raise UserError("--advantages method: a group has one response; an advantage needs at least two.")
        for kind, one in zip(self.kinds, methods.values(), strict=True):
            if not own_advantages:
                self.advantages[kind] = tokens["advantages"]
            elif kind not in self.advantages:
                try:
                    advantages = group_advantages(one.advantage, *rollouts.group_rewards())[: len(rollouts.lengths)]
                except ValueError as error:  # the advantage needs more than rewards of responses
                    raise UserError(f"--advantages method: advantage {one.advantage.name}: {error}") from error
                self.advantages[kind] = rollouts.each_token(advantages)
        others = [name for name, one in methods.items() if one.advantage != Grpo()]
        if not own_advantages and others:
            self.notes.append(
                f"{', '.join(others)}: computed with the advantages of the rows, like all objectives; "
                + ("" if {"reward", "group"} <= responses.keys() else "with `reward` and `group` in all rows, ")
                + "--advantages method gives each objective its own."
            )
        corrected = [name for name, one in methods.items() if one.sampler.corrects]
        if corrected and "rollout_log_probs" not in tokens:
            self.notes.append(f"{', '.join(corrected)}: computed without the correction, which {NO_ENGINE}.")
        if not {"entropy", "old_entropy"} <= tokens.keys():
            masked = [name for name, one in methods.items() if any("mask" in p.changed for p in one.penalties)]
            self.notes.append(
                f"{', '.join(masked)}: their mask uses covariances, since rows lack entropy or old_entropy."
            )
        step = responses.get("step", torch.zeros(len(rollouts.lengths)))
        self.steps = {value: (step == value).nonzero().squeeze(1) for value in step.unique().tolist()}
        row, mask = rollouts.each_token(torch.arange(len(step))), tokens["mask"]
        # Sums over each response.
        zero, old = torch.zeros(len(step)).double(), tokens["old_log_probs"].where(mask, 0.0)
        self.lengths, self.old = (zero.index_add(0, row, x.double()) for x in (mask, old))

    def chunks(self) -> Iterator[tuple[float, Tensor, Tensor, Tensor, list[dict[str, float]]]]:
        """(step, rows, c, advantages, metrics) by groups of rows; tensors are [objectives, rows, tokens]."""
        parts, last = list[tuple[float, Tensor]](), None
        for step, index in self.steps.items():
            order = index[self.rollouts.lengths[index].argsort(stable=True)]
            parts += [(step, rows) for rows in _chunks(order, self.rollouts.lengths[order])]
        shown = tqdm(parts, "objectives on parts of the responses", disable=len(parts) < MANY_CHUNKS)
        for number, (step, rows) in enumerate(shown, start=1):
            if step != last:
                whole, last = self._whole(self.steps[step]), step
            yield step, rows, *self.coefficients(rows, whole, self.seed + number)

    def coefficients(
        self, rows: Tensor, whole: Mapping[str, StepTotals], seed: int
    ) -> tuple[Tensor, Tensor, list[dict[str, float]]]:
        """c, advantages and metrics of ``rows``, a part of the step ``whole``."""
        batch = self.rollouts.rows(rows)
        engine = self.rollouts.tokens.get("rollout_log_probs")
        engine = None if engine is None else self.rollouts.padded(engine, rows)
        advantages = {kind: self.rollouts.padded(values, rows) for kind, values in self.advantages.items()}
        per_method, metrics = [], []
        for one, kind in zip(self.methods.values(), self.kinds, strict=True):
            weights = None
            if engine is not None and one.sampler.corrects:
                weights = rollout_weights(batch.old_log_probs, engine, batch.mask, one.sampler)
            changed = batch.replace(advantages=advantages[kind], step=whole[kind], rollout_weights=weights)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of masks by covariances, which the notes name
                    c, _, parts = coefficients(one, changed, seed)
            except ValueError as error:  # a method in ``own`` needs more than it declares
                raise UserError(f"{one.name}: {error}") from error
            per_method.append(c)
            metrics.append(parts)
        return torch.stack(per_method), torch.stack([advantages[kind] for kind in self.kinds]), metrics

    def _whole(self, index: Tensor) -> dict[str, StepTotals]:
        """The optimizer step of the responses ``index``, with each kind of advantages."""
        rollouts, groups = self.rollouts, self.rollouts.responses.get("group")
        chosen = torch.zeros(len(rollouts.lengths), dtype=torch.bool).index_fill(0, index, True)
        tokens = rollouts.each_token(chosen)
        totals = StepTotals(
            n_tokens=int(self.lengths[index].sum()),
            n_responses=len(index),
            max_length=int(rollouts.lengths[index].max()),
            responses=None if groups is None else Responses(groups[index], self.lengths[index], self.old[index]),
        )
        names = {"log_probs", "old_log_probs", "rollout_log_probs", "mask"} & rollouts.tokens.keys()
        # All tokens in one row.
        flat: dict[str, Any] = {name: rollouts.tokens[name][tokens].unsqueeze(0) for name in names}
        if "staleness" in rollouts.responses:
            flat["staleness"] = rollouts.each_token(rollouts.responses["staleness"])[tokens].unsqueeze(0)
        return {
            kind: replace(totals, tensors=TokenBatch(**flat, advantages=values[tokens].unsqueeze(0)))
            for kind, values in self.advantages.items()
        }


def _chunks(order: Tensor, lengths: Tensor) -> Iterator[Tensor]:
    """Rows of at most CHUNK tokens with padding, or one row; ``lengths`` ascend."""
    begin, widths, count = 0, lengths.tolist(), len(order)
    for end in range(1, count + 1):
        if end == count or (end + 1 - begin) * widths[end] > CHUNK:
            yield order[begin:end]
            begin = end
