"""The map of regimes on random policies: age of rollouts × length, dependence between tokens or learning rate.

A run is one of `studies/phase-ranges.yaml` in small: as many steps, as many responses in a step, Adam, and rollouts
that are ``age`` steps old. All methods see the same problems and random numbers. On-policy, they are all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from ..analysis.statistics import LEVEL, student
from ..analysis.verdicts import holm
from ..objective import Method
from ..objective.clip import PpoClip
from ..objective.ratio import Block, NoRatio, ProductRatio, SequenceRatio, TokenRatio
from ..progress import Progress
from ..provenance import commit
from ..results.measurements import Law, MapCell, MapMethod, MapRecord
from ..text import columns
from . import chains
from .definitions import BATCH, Estimator
from .measure import interval, token_weights
from .policies import every_response

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
# Clip ranges are chosen in these regimes, on problems of their own. `low` is 0.2 · 2^n, `high` 1.4 times that.
TUNING_SEED, EXPONENTS, LIMITS = 1, (-1, 0, 1), (-9, 5)


@dataclass(frozen=True)
class Cell:
    """A regime. The rewards are of groups of ``group`` tokens."""

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
TUNING = [Cell(age, learning_rate=rate) for age, rate in product(AGES[1:], RATES[1:])]


def run(method: Method, cell: Cell, seeds: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Expected reward after every ``EVERY`` steps [points, seeds], and the policy before each step and at the end."""
    generator = torch.Generator().manual_seed(seed)
    logits, rewards = chains.problems(seeds, cell.length, cell.group, generator)
    adam = torch.optim.Adam([logits], lr=cell.learning_rate, betas=BETAS, maximize=True)
    history = [logits.clone()]
    for step in range(STEPS):
        behaviour = history[max(0, step - cell.age)]
        uniform = torch.rand((seeds, BATCH, cell.length), generator=generator, dtype=torch.float64)
        tokens = chains.sample(behaviour, uniform)
        advantages = method.advantages(chains.reward(tokens, rewards))
        logits.grad = chains.by_logit(estimates(method, logits, behaviour, tokens, advantages), tokens) / BATCH
        adam.step()
        history.append(logits.clone())
    return torch.stack([chains.expected_reward(p, rewards) for p in history[EVERY::EVERY]]), torch.stack(history)


def estimates(method: Method, logits: Tensor, behaviour: Tensor, tokens: Tensor, advantages: Tensor) -> Tensor:
    """Contribution of each token to the estimate of ∇J by its response, at its logit. [policies, responses, tokens]."""
    now, old = (chains.log_probs(policy, tokens) for policy in (logits, behaviour))
    return token_weights(method, now, old, advantages) * chains.scores(now, tokens)


def moments(method: Method, logits: Tensor, behaviour: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Expectation [policies, tokens, 2] and total variance [policies] of the estimate from one response, exactly.

    The baseline of the advantage is the behaviour policy's expected reward, as in an endless group.
    """
    tokens = every_response(logits.shape[1]).expand(len(logits), -1, -1)
    probability = chains.log_probs(behaviour, tokens).sum(-1).exp()
    reward = chains.reward(tokens, rewards)
    advantages = reward - (probability * reward).sum(1, keepdim=True)
    terms = estimates(method, logits, behaviour, tokens, advantages)
    mean = chains.by_logit(probability[..., None] * terms, tokens)
    return mean, (probability * terms.square().sum(-1)).sum(1) - mean.square().sum((1, 2))


def chosen_clip(ratio: Estimator, seeds: int) -> tuple[PpoClip, dict[str, float]]:
    """The clip with the largest area, and the areas of all candidates, by `high`, in points.

    The list is extended until the best is not at its end, or is at a limit, where a clip acts always or never.
    """

    @functools.cache
    def area(exponent: int) -> float:
        clipped = Estimator(ratio.name, ratio.ratio, _band(exponent))
        return float(np.mean([100 * run(clipped.method, cell, seeds, TUNING_SEED)[0].mean() for cell in TUNING]))

    tried = list(EXPONENTS)
    while True:
        best = max(tried, key=area)
        further = {min(tried): best - 1, max(tried): best + 1}.get(best)
        if further is None or not LIMITS[0] <= further <= LIMITS[1]:
            return _band(best), {f"{_band(n).high:g}": round(area(n), 3) for n in sorted(tried)}
        tried.append(further)


def run_map(seeds: int) -> MapRecord:
    """Choose the clips, then measure every method in every cell; ``seeds`` random problems for each."""
    made_by, clips = commit(), {}
    for ratio in Progress(UNCLIPPED[: len(RATIOS)], "clip ranges", len(RATIOS)):
        clips[ratio.name] = chosen_clip(ratio, seeds)
    clipped = [Estimator(name, ratio, clips[name][0]) for name, ratio in RATIOS.items()]
    methods = sorted([*UNCLIPPED, *clipped], key=lambda e: [u.name for u in UNCLIPPED].index(e.name))
    cells = [_cell(cell, methods, seeds) for cell in Progress(CELLS, "cells", len(CELLS))]
    p = iter(holm([m.p for cell in cells for m in cell.methods]))
    cells = [c.model_copy(update={"methods": [m.model_copy(update={"p": next(p)}) for m in c.methods]}) for c in cells]
    return MapRecord(
        commit=made_by,
        seeds=seeds,
        batch=BATCH,
        steps=STEPS,
        clips={name: areas for name, (_, areas) in clips.items()},
        cells=cells,
        laws=[law(name, cells) for name in ("none", *RATIOS)],  # without an active cap, a product has no bias
    )


def text(record: MapRecord) -> str:
    """A row per cell for the terminal: differences to the reference, with a star where they are shown."""
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


def law(name: str, cells: Sequence[MapCell]) -> Law:
    """log relative bias = constant + Σ exponent · log setting, by least squares over the cells."""
    methods = [next(m for m in (c.reference, *c.methods) if m.name == name and m.clip is None) for c in cells]
    bias = np.log([m.bias[0] for m in methods])

    def fit(*columns: list[float]) -> tuple[list[float], float]:
        design = np.column_stack([np.ones(len(cells)), *np.log(columns)])
        solution = np.linalg.lstsq(design, bias, rcond=None)[0]
        return solution[1:].tolist(), float(1 - np.var(bias - design @ solution) / np.var(bias))

    (one,), r2 = fit([cell.age * cell.learning_rate for cell in cells])
    keys = ("age", "learning_rate", "length", "group")
    by_setting, r2_each = fit(*([getattr(cell, key) for cell in cells] for key in keys))
    exponents = {key: round(value, 3) for key, value in zip(keys, by_setting, strict=True)}
    return Law(name=name, staleness=round(one, 3), r2=round(r2, 3), exponents=exponents, r2_each=round(r2_each, 3))


def _band(exponent: int) -> PpoClip:
    low = 0.2 * 2.0**exponent
    return PpoClip(low=round(min(low, 1.0), 6), high=round(1.4 * low, 6))  # from 1 on, nothing is below the range


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
