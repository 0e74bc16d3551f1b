"""The map of regimes on random policies: age of rollouts × length, dependence between tokens or learning rate.

A run is a small version of one of lab/research/studies/phase-ranges.yaml, with as many steps and responses per step,
Adam, and rollouts that are ``age`` steps old. All methods see the same problems and random numbers. On-policy, all
methods make the same updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product

import torch
from torch import Tensor
from tqdm import tqdm

from policygrain.analysis.statistics import LEVEL, holm, student
from policygrain.objective import Method
from policygrain.objective.clip import PpoClip
from policygrain.objective.ratio import Block, NoRatio, ProductRatio, SequenceRatio, TokenRatio
from policygrain.provenance import commit
from policygrain.text import columns

from . import chains
from .chains import every_response
from .decision import BATCH, Estimator, interval, token_weights
from .records import MapCell, MapMethod, MapRecord

STEPS, EVERY = 64, 8  # steps of a run, and between two measurements of its expected reward
AGES, LENGTHS, GROUPS, RATES = (4, 16, 48), (2, 4, 8, 12), (1, 2, 4, 8), (0.01, 0.04, 0.16)
BETAS = (0.9, 0.95)  # Adam's, as in training
ENUMERATED = 2**18  # responses of all problems together, in exact expectations
RATIOS = {
    "token": TokenRatio(),
    "block": Block(size=2, weights="uniform", edges="normalised"),
    "sequence": SequenceRatio(),
}
REFERENCE = Estimator("none", NoRatio())
UNCLIPPED = [
    *(Estimator(name, ratio) for name, ratio in RATIOS.items()),
    Estimator("product", ProductRatio()),
    Estimator("product, cap 2", ProductRatio(cap=2.0)),
]
# Chosen on other problems. With low = 1, no ratio is below the range.
CLIPS = {
    "token": PpoClip(low=1.0, high=8.96),
    "block": PpoClip(low=1.0, high=8.96),
    "sequence": PpoClip(low=1.0, high=2.24),
}


@dataclass(frozen=True)
class Cell:
    """A regime. Each group of ``group`` consecutive tokens has a reward; ``age``: of rollouts, in optimizer steps."""

    age: int
    length: int = 8
    group: int = 2
    learning_rate: float = 0.04


CELLS = list(
    dict.fromkeys(
        Cell(age, **{key: value})  # type: ignore[arg-type]
        for key, values in (("length", LENGTHS), ("group", GROUPS), ("learning_rate", RATES))
        for value, age in product(values, AGES)
    )
)


def run(method: Method, cell: Cell, seeds: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Expected reward every ``EVERY`` steps [STEPS / EVERY, seeds], and all policies of the run [STEPS + 1, …]."""
    generator = torch.Generator().manual_seed(seed)
    logits, rewards = chains.problems(seeds, cell.length, cell.group, generator)
    adam = torch.optim.Adam([logits], lr=cell.learning_rate, betas=BETAS, maximize=True)
    history = [logits.clone()]
    for step in range(STEPS):
        behaviour = history[max(0, step - cell.age)]
        uniform = torch.rand((seeds, BATCH, cell.length), generator=generator, dtype=torch.float64)
        tokens = chains.sample(behaviour, uniform)
        advantages = method.advantage(chains.reward(tokens, rewards))
        logits.grad = chains.by_logit(estimates(method, logits, behaviour, tokens, advantages), tokens) / BATCH
        adam.step()
        history.append(logits.clone())
    return torch.stack([chains.expected_reward(p, rewards) for p in history[EVERY::EVERY]]), torch.stack(history)


def estimates(method: Method, logits: Tensor, behaviour: Tensor, tokens: Tensor, advantages: Tensor) -> Tensor:
    """Contribution of each token, at its logit, to the estimate of ∇J. [policies, responses, tokens]."""
    now, old = (chains.log_probs(policy, tokens) for policy in (logits, behaviour))
    return token_weights(method, now, old, advantages) * chains.scores(now, tokens)


def moments(method: Method, logits: Tensor, behaviour: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Expectation [policies, tokens, 2] and total variance [policies] of the estimate from one response, exactly.

    The baseline of the advantage is the behaviour policy's expected reward, as in an infinite group.
    """
    tokens = every_response(logits.shape[1]).expand(len(logits), -1, -1)
    probability = chains.log_probs(behaviour, tokens).sum(-1).exp()
    reward = chains.reward(tokens, rewards)
    advantages = reward - (probability * reward).sum(1, keepdim=True)
    terms = estimates(method, logits, behaviour, tokens, advantages)
    mean = chains.by_logit(probability[..., None] * terms, tokens)
    return mean, (probability * terms.square().sum(-1)).sum(1) - mean.square().sum((1, 2))


def run_map(seeds: int) -> MapRecord:
    """Measure every method in every cell; ``seeds`` random problems for each."""
    made_by = commit()
    clipped = [Estimator(name, ratio, CLIPS[name]) for name, ratio in RATIOS.items()]
    methods = sorted([*UNCLIPPED, *clipped], key=lambda e: [u.name for u in UNCLIPPED].index(e.name))
    cells = [_cell(cell, methods, seeds) for cell in tqdm(CELLS, "cells")]
    p = iter(holm([m.p for cell in cells for m in cell.methods]))
    cells = [c.model_copy(update={"methods": [m.model_copy(update={"p": next(p)}) for m in c.methods]}) for c in cells]
    return MapRecord(commit=made_by, seeds=seeds, batch=BATCH, steps=STEPS, cells=cells)


def text(record: MapRecord) -> str:
    """A row per cell for the terminal: differences from the reference, with a star if they are shown (Holm)."""
    names = [m.name + (f" {m.clip[0]:g}/{m.clip[1]:g}" if m.clip else "") for m in record.cells[0].methods]
    header = ["age", "rate", "length", "group", "nats", "none", *names]
    rows = [
        [
            *(f"{x:g}" for x in (c.age, c.learning_rate, c.length, c.group)),
            f"{c.nats[0]:.4f}",
            f"{c.area[0]:.1f}",
            *(f"{m.difference[0]:+.2f}{'*' if m.p < LEVEL else ''}" for m in c.methods),
        ]
        for c in record.cells
    ]
    footer = f"Expected reward, mean over {record.steps} steps, minus none's, in points; {record.seeds} problems."
    return "\n".join([*columns(rows, header, "r"), footer])


def _cell(cell: Cell, methods: Sequence[Estimator], seeds: int) -> MapCell:
    curves, history = run(REFERENCE.method, cell, seeds)
    _, rewards = chains.problems(seeds, cell.length, cell.group, torch.Generator().manual_seed(0))
    few = min(seeds, ENUMERATED // 2**cell.length)
    behaviour, logits, rewards = history[0, :few], history[cell.age, :few], rewards[:few]
    tokens = every_response(cell.length)
    old, now = (chains.log_probs(policy, tokens).sum(-1) for policy in (behaviour, logits))

    def measured(estimator: Estimator, areas: Tensor) -> MapMethod:
        mean, variance = moments(estimator.method, logits, behaviour, rewards)
        exact = chains.exact_gradient(logits, rewards)
        length = exact.flatten(1).norm(dim=1)
        difference = student((100 * (areas - reference)).numpy())
        clip = estimator.clip.settings if estimator.is_clipped else None
        return MapMethod(
            name=estimator.name,
            clip=(clip["low"], clip["high"]) if clip else None,
            cosine=interval(torch.cosine_similarity(mean.flatten(1), exact.flatten(1))),
            bias=_ratio((mean - exact).flatten(1).norm(dim=1), length),
            snr=_ratio(BATCH * mean.square().sum((1, 2)), variance),
            difference=interval(100 * (areas - reference)),
            p=difference.p,
        )

    reference = curves.mean(0)
    return MapCell(
        **asdict(cell),
        nats=interval((old.exp() * (old - now)).sum(1) / cell.length),
        enumerated=few,
        area=interval(100 * reference),
        reference=measured(REFERENCE, reference),
        methods=[measured(e, run(e.method, cell, seeds)[0].mean(0)) for e in methods],
    )


def _ratio(above: Tensor, below: Tensor) -> tuple[float, float, float]:
    """The ratio of two means, with the interval of its linear approximation."""
    ratio = above.mean() / below.mean()
    return interval(ratio + (above - ratio * below) / below.mean())
