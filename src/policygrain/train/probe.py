"""The probe: variance of ratios and noise of gradients, for every ratio on the same batch. No model is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..clock import Clock
from ..errors import UserError
from ..grading import open_grader
from ..methods import method
from ..methods.parts import Block, Part, PrefixRatio, SequenceRatio, TokenRatio
from ..methods.schema import Sampler
from ..model.logprobs import score_tokens
from ..model.sequences import micro_batches
from ..objective.loss import merge_metrics
from ..provenance import seed_of
from ..results.layout import DataFolder
from ..results.schema import ProbeRecord, ProbeRow, write_record
from ..rollout.open import open_engine
from ..study.fingerprint import Fingerprints
from ..tasks.problem import read_problems
from ..tasks.prompts import PromptRenderer
from .policy import open_policy
from .rollouts import Collector, PromptStream
from .update import TrainingBatch, minibatches, prepare, update

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study import Study

# From the finest grain to the coarsest; no clip and one aggregation, so that the ratio is all that differs.
PARTS = (TokenRatio(), Block(size=2), Block(), Block(size=9), Block(weights="joint"), SequenceRatio(), PrefixRatio())
RATIOS: dict[str, Part] = {part.label: part for part in PARTS}


def probe(study: Study, seed: int, start: str, data: DataFolder, out: Path) -> None:
    """Sample a batch, take k optimizer steps with the token ratio, and measure the batch with every ratio.

    Writes a `ProbeRecord`: a row per k and ratio; `gradient_noise` is the variance of the batch's gradient over its
    squared norm. No rows where no group had unequal rewards.
    """
    if (spec := study.probe) is None:
        raise UserError("probe: this study has none; give it `probe: {prompts: 24}`.")
    # One device: the gradients of a sharded model are nowhere complete.
    settings = study.training.model_copy(update={"prompts_per_step": spec.prompts, "fsdp": None})
    torch.set_num_threads(settings.threads)
    torch.manual_seed(seed_of("probe", seed))
    guide = method("grpo_clip_higher", aggregation="token_mean")
    policy = open_policy(start, study.model, guide, settings, seed)
    model, tokenizer = policy.model, policy.tokenizer
    renderer = PromptRenderer(tokenizer, study.prompt, model.config.max_position_embeddings - settings.max_tokens)
    stream = PromptStream(read_problems(data.train), seed_of("probe", seed))
    with open_grader(study.grader) as grader:
        engine = open_engine(
            settings.engine,
            start,
            model,
            tokenizer,
            revision=study.model.revision,
            kv_gib=settings.kv_gib,
            colocated=True,
        )
        engine.load_weights(model)
        # Groups of equal rewards have no gradient under any ratio, so they are left out.
        sampler = Sampler(dynamic=True)
        collector = Collector(stream, engine, grader, renderer, sampler, settings, seed_of("probe", seed))
        rollouts = collector.collect(Clock())
        engine.sleep()
    own = Fingerprints(study).probe_settings(seed)
    if not rollouts.prompts:
        # A start model that solves nothing, or everything, has no gradient.
        write_record(out, ProbeRecord(seed=seed, settings=own, responses=0, rows=[]))
        return
    batch, _ = prepare(rollouts, policy, guide, settings)
    rows: list[ProbeRow] = []
    done = 0
    for updates in sorted(spec.updates):
        cut = len(rollouts.prompts), settings.group, max(1, updates - done)
        for part in minibatches(*cut, seed_of("probe", seed, updates)) if updates > done else []:
            update(policy, batch.rows(part), guide, settings)
        done = updates
        rows += [ProbeRow(updates=updates, seed=seed, **row) for row in _measure(model, batch, settings)]
    write_record(out, ProbeRecord(seed=seed, settings=own, responses=len(batch.sequences.ids), rows=rows))


def _measure(model: PreTrainedModel, batch: TrainingBatch, settings: Any) -> list[dict[str, Any]]:
    """A row per ratio: metrics of the whole batch, and the noise of its gradient over prompts."""
    step = batch.tokens.replace(step=None).totals
    rows = []
    # One ratio after the other: of each, no more than one prompt's gradient and the sum are held.
    for name, ratio in RATIOS.items():
        chosen, spread, parts = method("reinforce", ratio=ratio), Spread(), []
        for start in range(0, len(batch.sequences.ids), settings.group):
            group = batch.rows(torch.arange(start, start + settings.group))
            model.zero_grad(set_to_none=True)
            for index in micro_batches(group.sequences, settings.micro_batch_tokens):
                part = group.rows(index)
                scores = score_tokens(model, part.sequences, settings.temperature, entropy_gradient=False)
                tokens = part.tokens.replace(log_probs=scores.log_probs, entropy=None, old_entropy=None, step=step)
                out = chosen.loss(tokens)
                out.loss.backward()
                parts.append(out.metrics)
            spread.add([p.grad for p in model.parameters() if p.grad is not None])
        merged = merge_metrics(parts)
        shown = {key: merged[key] for key in ("ratio_mean", "ratio_max", "ratio_variance", "effective_sample_share")}
        rows.append({"ratio": name, **shown, "gradient_noise": spread.noise()})
    model.zero_grad(set_to_none=True)
    return rows


class Spread:
    """Gradients of P shares of a batch, of which only the sum and the sum of squared norms are kept."""

    def __init__(self) -> None:
        self.count, self.squares = 0, 0.0
        self.total: list[Tensor] = []

    def add(self, gradient: Sequence[Tensor]) -> None:
        """One share's gradient, a tensor per parameter, always in the same order; it is not kept."""
        self.count += 1
        self.squares += _square(gradient)
        if self.total:
            torch._foreach_add_(self.total, list(gradient))
        else:
            self.total = [share.clone() for share in gradient]

    def noise(self) -> float:
        """Variance of G = Σ_p g_p over its squared norm, from the spread of the shares.

        P/(P−1) Σ|g_p − G/P|² / |G|²: 1 where signal and noise of one batch are equal. Half of it: twice the batch.
        """
        square = _square(self.total)
        variance = (self.squares - square / self.count) * self.count / max(1, self.count - 1)
        return max(0.0, variance) / max(square, 1e-30)


def _square(tensors: Sequence[Tensor]) -> float:
    return sum(float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 for x in tensors)
