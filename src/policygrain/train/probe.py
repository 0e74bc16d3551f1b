"""What each ratio makes of the very same batch: spread of ratios, noise of gradients. Nothing is trained by it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..clock import Clock
from ..files import atomic_json
from ..methods import method
from ..methods.spec import Sampler
from ..model.loading import load_model
from ..model.logprobs import read
from ..objective.loss import merge_metrics
from ..provenance import seed_of
from ..rollout.open import open_engine
from ..tasks.problem import read_problems
from ..tasks.prompts import PromptRenderer
from ..verify import open_verifier
from .rollouts import Collector, PromptStream
from .update import TrainingBatch, make_optimizer, minibatches, prepare, update

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..study import Study

# From the finest grain to the coarsest; no clip and one aggregation, so that the ratio is all that differs.
RATIOS: dict[str, Any] = {
    "token": "token",
    "block K=2": {"name": "block", "size": 2},
    "block K=5": {"name": "block", "size": 5},
    "block K=9": {"name": "block", "size": 9},
    "block K=5, joint": {"name": "block", "size": 5, "weights": "joint"},
    "sequence": "sequence",
    "prefix": "prefix",
}


def probe(study: Study, seed: int, start: str, data: Path, out: Path) -> None:
    """Sample a batch from ``start``, go off it by some updates of the token ratio, and look at it with every ratio.

    Writes JSON: a row per number of updates and ratio, with `ratio_variance`, `effective_sample_share`, `ratio_max` and
    `gradient_noise`, the variance of the batch's gradient over its squared norm. No rows where no group had unequal
    rewards.
    """
    spec, settings = study.probe, study.training.model_copy(update={"prompts_per_step": study.probe.prompts})
    torch.set_num_threads(settings.threads)
    torch.manual_seed(seed_of("probe", seed))
    model, tokenizer = load_model(start, study.model.revision, study.model.dtype)
    reference = copy.deepcopy(model)
    guide = method("grpo_clip_higher", aggregation="token_mean")
    renderer = PromptRenderer(tokenizer, study.prompt, model.config.max_position_embeddings - settings.max_tokens)
    stream = PromptStream(read_problems(data / "train.jsonl"), seed_of("probe", seed))
    with open_verifier(study.verifier) as verifier:
        engine = open_engine(settings.engine, start, model, tokenizer)
        # Groups of equal rewards have no gradient under any ratio, so they are left out.
        sampler = Sampler(dynamic=True)
        collector = Collector(stream, engine, verifier, renderer, sampler, settings, seed_of("probe", seed))
        rollouts = collector.collect(Clock())
    if not rollouts.prompts:
        # A start model that gets nothing right (or everything) has no gradient to look at.
        atomic_json(out, {"responses": 0, "rows": []})
        return
    batch, _ = prepare(rollouts, model, reference, guide, settings, tokenizer.pad_token_id)
    optimizer = make_optimizer(model, None, guide, settings)
    rows: list[dict[str, Any]] = []
    done = 0
    for updates in sorted(spec.updates):
        cut = len(rollouts.prompts), settings.group, max(1, updates - done)
        for part in minibatches(*cut, seed_of("probe", seed, updates)) if updates > done else []:
            update(model, optimizer, batch.rows(part), guide, settings)
        done = updates
        rows += [{"updates": updates, "seed": seed, **row} for row in _look(model, batch, settings)]
    atomic_json(out, {"responses": len(batch.sequences.ids), "rows": rows})


def _look(model: PreTrainedModel, batch: TrainingBatch, settings: Any) -> list[dict[str, Any]]:
    """A row per ratio: metrics of the whole batch, and the noise of its gradient over prompts."""
    methods = {name: method("reinforce", ratio=ratio) for name, ratio in RATIOS.items()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients: dict[str, list[Tensor]] = {name: [] for name in methods}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    step = batch.tokens.replace(step=None)
    for start in range(0, len(batch.sequences.ids), settings.group):
        group = batch.rows(torch.arange(start, start + settings.group))
        reading = read(model, group.sequences, settings.temperature, entropy_gradient=False)
        tokens = group.tokens.replace(log_probs=reading.log_probs, entropy=None, old_entropy=None, step=step)
        for name, chosen in methods.items():
            out = chosen.loss(tokens)
            gradient = torch.autograd.grad(out.loss, parameters, retain_graph=True, allow_unused=True)
            gradients[name].append(torch.cat([g.flatten() for g in gradient if g is not None]))
            parts[name].append(out.metrics)
    return [{"ratio": name, **_merged(parts[name]), "gradient_noise": noise(gradients[name])} for name in methods]


def _merged(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    merged = merge_metrics(parts)
    return {key: merged[key] for key in ("ratio_mean", "ratio_max", "ratio_variance", "effective_sample_share")}


def noise(gradients: Sequence[Tensor]) -> float:
    """Variance of Σ_p g_p over its squared norm, from the spread of the prompts' shares g_p [P][parameters].

    P/(P−1) Σ|g_p − ḡ|² / |Σ g_p|²: 1 where signal and noise of one batch are equal. Half of it: twice the batch.
    """
    stacked = torch.stack(list(gradients)).double()
    count = len(stacked)
    variance = (stacked - stacked.mean(0)).square().sum() * count / max(1, count - 1)
    return float(variance / stacked.sum(0).square().sum().clamp(min=1e-30))
