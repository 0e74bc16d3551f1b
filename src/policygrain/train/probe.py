"""The probe: variance of the ratio and gradient noise, measured for every ratio on the same batch."""

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

# From the finest to the coarsest grain. They are measured without clip and with the same aggregation.
PARTS = (TokenRatio(), Block(size=2), Block(), Block(size=9), Block(weights="joint"), SequenceRatio(), PrefixRatio())
RATIOS: dict[str, Part] = {part.label: part for part in PARTS}


def probe(study: Study, seed: int, start: str, data: DataFolder, out: Path) -> None:
    """Sample a batch, take k optimizer steps with the token ratio, and measure every ratio on the batch.

    Writes a `ProbeRecord` with a row per k and ratio; `gradient_noise` is the variance of the batch's gradient over its
    squared norm. There are no rows if no group has unequal rewards.
    """
    if (spec := study.probe) is None:
        raise UserError("probe: this study has no probe; add `probe: {prompts: 24}`.")
    # Without sharding: no rank has the complete gradients of a sharded model.
    settings = study.training.model_copy(update={"prompts_per_step": spec.prompts, "fsdp": None})
    torch.set_num_threads(settings.threads)
    torch.manual_seed(seed_of("probe", seed))
    update_method = method("grpo_clip_higher", aggregation="token_mean")
    policy = open_policy(start, study.model, update_method, settings, seed)
    model, tokenizer = policy.model, policy.tokenizer
    renderer = PromptRenderer(tokenizer, study.prompt, model.config.max_position_embeddings - settings.max_tokens)
    stream = PromptStream(read_problems(data.train), seed_of("probe", seed))
    with open_grader(study.grader, study.extraction) as grader:
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
        # Groups with equal rewards have zero gradient for every ratio, so they are left out.
        sampler = Sampler(dynamic=True)
        collector = Collector(stream, engine, grader, renderer, sampler, settings, seed_of("probe", seed))
        rollouts = collector.collect(Clock())
        engine.sleep()
    own = Fingerprints(study).probe_settings(seed)
    if not rollouts.prompts:
        # The gradient is zero if the start model solves no problem or every problem.
        write_record(out, ProbeRecord(seed=seed, settings=own, responses=0, rows=[]))
        return
    batch, _ = prepare(rollouts, policy, update_method, settings)
    rows: list[ProbeRow] = []
    done = 0
    for updates in sorted(spec.updates):
        sizes = len(rollouts.prompts), settings.group, max(1, updates - done)
        for part in minibatches(*sizes, seed_of("probe", seed, updates)) if updates > done else []:
            update(policy, batch.rows(part), update_method, settings)
        done = updates
        rows += [ProbeRow(updates=updates, seed=seed, **row) for row in _measure(model, batch, settings)]
    write_record(out, ProbeRecord(seed=seed, settings=own, responses=len(batch.sequences.ids), rows=rows))


def _measure(model: PreTrainedModel, batch: TrainingBatch, settings: Any) -> list[dict[str, Any]]:
    """A row per ratio: metrics of the whole batch, and its gradient noise, estimated over prompts."""
    step = batch.tokens.replace(step=None).totals
    rows = []
    # One ratio after the other, so that only one prompt's gradient and one sum are in memory.
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
    """The spread of the gradients of P prompts; only their sum and the sum of squared norms are kept in memory."""

    def __init__(self) -> None:
        self.count, self.squares = 0, 0.0
        self.total: list[Tensor] = []

    def add(self, gradient: Sequence[Tensor]) -> None:
        """Add the gradient of one prompt: a tensor per parameter, always in the same order."""
        self.count += 1
        self.squares += _square(gradient)
        if self.total:
            torch._foreach_add_(self.total, list(gradient))
        else:
            self.total = [share.clone() for share in gradient]

    def noise(self) -> float:
        """Variance of the batch gradient G = Σ_p g_p over its squared norm: P/(P−1) Σ|g_p − G/P|² / |G|².

        At 1, signal and noise of the batch are equal; a batch of twice the size has half the value.
        """
        square = _square(self.total)
        variance = (self.squares - square / self.count) * self.count / max(1, self.count - 1)
        return max(0.0, variance) / max(square, 1e-30)


def _square(tensors: Sequence[Tensor]) -> float:
    return sum(float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2 for x in tensors)
