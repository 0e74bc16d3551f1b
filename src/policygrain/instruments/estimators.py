"""Gradient estimators on the same batches, compared with the true gradient (docs/estimators.md)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..objective import Method, method
from ..objective.part import Part
from ..objective.penalty import Kl
from ..progress import Progress
from ..provenance import commit, seed_of
from ..results.layout import DataFolder
from ..results.measurements import EstimatorRow, EstimatorsRecord
from ..results.schema import write_record
from ..study.checks import check_prompts
from ..study.fingerprint import Fingerprints
from .gradients import estimate
from .inputs import Instrument, made_from
from .measured_policy import MeasuredPolicy, Pool, all_needs, open_measured_policy, plain
from .quality import Updates, blocks_for
from .truth import measure_truths

if TYPE_CHECKING:
    from ..study import Study
    from ..study.schema import Estimators

LARGE_SHARE = 0.5  # of the gradient's norm: from here on a penalty decides more than the objective


def measure_estimators(study: Study, seed: int, start: str, data: DataFolder, out: Path) -> EstimatorsRecord:
    """Measure the study's estimators on the initial model ``start`` of ``seed``, and write the record to ``out``.

    At each stage (`estimators.steps`) the policy's rollouts are sampled once. At each distance (`estimators.updates`)
    all methods compute their updates from the same batches of them. UserError for more prompts than there are, before
    anything is computed. If no policy has a gradient there are no rows, and a note says so.
    """
    spec = study.estimators
    assert spec is not None
    methods = [plain(method(name, study.methods)) for name in spec.methods]
    for chosen in methods:
        chosen.check()
    started, made_at = time.perf_counter(), commit()
    rows: list[EstimatorRow] = []
    notes: list[str] = []
    accuracy: dict[str, float] = {}
    with open_measured_policy(study, spec.reference, seed, start, data) as measured:
        check_prompts("estimators", spec, len(measured.train_problems))
        for steps in sorted(spec.steps):
            measured.train_until(steps)
            saved = measured.save()
            # All are sampled from the behaviour policy, before the first update away from it.
            prompts = spec.batches * spec.prompts_per_update
            pool = measured.pool(prompts, "batches", steps, needs=all_needs(methods))
            path = measured.pool(max(1, *spec.updates) * spec.prompts_per_update, "path", steps)
            done = 0
            for updates in sorted(spec.updates):
                for number in range(done, updates):
                    part = path.rows(_prompts(number, spec))
                    measured.update(path.batch.rows(part), measured.reference)
                done = updates
                accuracy[f"{steps}/{updates}"], compared = _compare(measured, spec, methods, pool, updates, notes)
                rows += compared
            measured.restore(saved)
        notes += _penalties(rows, methods)
        group = measured.settings.group
    record = EstimatorsRecord(
        seed=seed,
        settings=Fingerprints(study).instrument_settings("estimators", seed),
        made_from=made_from(start, data, study.model.revision),
        commit=made_at,
        reference=spec.reference,
        accuracy=accuracy,
        batches=spec.batches,
        true_responses=spec.true_prompts * group,
        responses_per_batch=spec.prompts_per_update * group,
        seconds=time.perf_counter() - started,
        rows=rows,
        notes=notes,
    )
    write_record(out, record)
    return record


def _prompts(number: int, spec: Estimators) -> range:
    """The prompts of the batch ``number`` of a pool."""
    return range(number * spec.prompts_per_update, (number + 1) * spec.prompts_per_update)


def _compare(
    measured: MeasuredPolicy, spec: Estimators, methods: list[Method], pool: Pool, updates: int, notes: list[str]
) -> tuple[float, list[EstimatorRow]]:
    """Accuracy of the current policy, and a row per method; none, and a note, where there is no gradient."""
    steps, rewards = measured.steps, pool.rollouts.rewards
    where = f"{steps} steps, {updates} updates"
    count = sum(p.numel() for p in measured.parameters)
    aggregations: list[Part] = []
    for chosen in methods:
        if chosen.aggregation not in aggregations:
            aggregations.append(chosen.aggregation)
    truth_blocks = blocks_for(len(aggregations) + 1, count, spec.true_prompts)
    metric = adam_metric(measured)
    truths = measure_truths(measured, spec.true_prompts, truth_blocks, aggregations, metric, steps, updates)
    accuracy = truths[0].accuracy
    names = [m.name for m in methods]
    blocks = blocks_for(len(names), count, spec.batches)
    collected = Updates({m.name: truths[aggregations.index(m.aggregation)] for m in methods}, spec.batches, blocks)
    if not all(truth.known for truth in truths):
        notes.append(
            f"{where}: no rows, because the true gradient cannot be told from 0 by {spec.true_prompts} prompts (a "
            f"policy that solves no problem, or every one, has none). Accuracy: {accuracy:.3f}."
        )
        return accuracy, []
    if any(truth.weak for truth in truths):
        notes.append(
            f"{where}: the squared norm of the true gradient is uncertain (its interval contains 0), and so are "
            "cosines and lengths; differences are less affected. More true_prompts help."
        )
    for number in Progress(range(spec.batches), f"estimators, {where}", spec.batches):
        prompts = _prompts(number, spec)
        part = rewards[prompts.start : prompts.stop]
        seed = seed_of("instruments", measured.seed, "loss", steps, updates, number)
        collected.add(number, estimate(measured, pool.batch.rows(pool.rows(prompts)), part, methods, seed))
    empty = int((~collected.any_gradient).sum())
    if empty == spec.batches:
        notes.append(f"{where}: no rows, because no batch has a gradient: all rewards of a group are equal.")
        return accuracy, []
    if empty:
        notes.append(
            f"{where}: {empty} of {spec.batches} batches have no gradient, because all rewards of a group are equal; "
            "they count in means of updates, and not in means of cosines."
        )
    rows = []
    for name in names:
        values, determined = collected.measures(name, spec.reference)
        rows.append(EstimatorRow(steps=steps, updates=updates, estimator=name, **values))
        if not determined:
            notes.append(
                f"{where}: {name}: its mean update cannot be told from 0 by {spec.batches} batches, so its bias_cosine "
                "is not known. More batches may tell."
            )
    return accuracy, rows


def adam_metric(measured: MeasuredPolicy) -> Tensor:
    """The diagonal 1 / (√v̂ + ε) that AdamW multiplies an update by, [parameters]; ones before its first step.

    v̂ is the second moment with Adam's correction for its start (arXiv 1412.6980).
    """
    optimizer = measured.policy.optimizer
    group = optimizer.param_groups[0]
    decay, epsilon = group["betas"][1], group["eps"]
    parts = []
    for parameter in measured.parameters:
        if "exp_avg_sq" not in (state := optimizer.state.get(parameter, {})):
            parts.append(torch.ones(parameter.numel(), device=parameter.device))
            continue
        corrected = state["exp_avg_sq"].flatten().float() / (1 - decay ** float(state["step"]))
        parts.append(1 / (corrected.sqrt() + epsilon))
    return torch.cat(parts)


def _penalties(rows: list[EstimatorRow], methods: list[Method]) -> list[str]:
    """Warnings about KL penalties that carry most of the gradient."""
    notes = []
    for chosen in methods:
        if not any(isinstance(part, Kl) for part in chosen.penalties):
            continue
        shares = [(row.penalty_share, row.steps, row.updates) for row in rows if row.estimator == chosen.name]
        share, steps, updates = max(shares, default=(0.0, 0, 0))
        if share > LARGE_SHARE:
            notes.append(
                f"{chosen.name}: its penalties carry {share:.0%} of the gradient's norm ({steps} steps, {updates} "
                "updates). Its KL penalty takes k3 as a loss, whose derivative by log π is 1 − π_ref/π: it is at most "
                "1 and has no lower bound, so a few tokens whose probability fell can carry the norm (Liu et al., "
                "arXiv 2510.01555)."
            )
    return notes


ESTIMATORS = Instrument("estimators", EstimatorsRecord, measure_estimators)
