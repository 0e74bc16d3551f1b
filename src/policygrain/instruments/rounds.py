"""One round: the same updates by each method, from one policy and one pool of its rollouts (docs/rounds.md)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..objective import Method, method
from ..progress import Progress
from ..provenance import commit, seed_of
from ..results.layout import DataFolder
from ..results.measurements import RoundRow, RoundsRecord
from ..results.schema import write_record
from ..study.checks import check_prompts
from ..study.fingerprint import Fingerprints
from ..train.update import TrainingBatch
from .inputs import Instrument, made_from
from .measured_policy import MeasuredPolicy, Pool, all_needs, open_measured_policy, plain, with_advantages

if TYPE_CHECKING:
    from ..study import Study
    from ..study.schema import Rounds


def measure_rounds(study: Study, seed: int, start: str, data: DataFolder, out: Path) -> RoundsRecord:
    """Measure a round by each method from the initial model ``start`` of ``seed``, and write the record to ``out``.

    Each method begins with the same weights and optimizer state, makes the same minibatches' updates, and is validated
    on the same problems with the same sampling seeds. UserError for more prompts than there are.
    """
    spec = study.rounds
    assert spec is not None
    methods = [plain(method(name, study.methods)) for name in spec.methods]
    for chosen in methods:
        chosen.check()
    started, made_at = time.perf_counter(), commit()
    rows: list[RoundRow] = []
    before: dict[str, float] = {}
    with open_measured_policy(study, spec.reference, seed, start, data) as measured:
        check_prompts("rounds", spec, len(measured.train_problems))
        for steps in sorted(spec.steps):
            measured.train_until(steps)
            saved = measured.save()
            starts = {n: measured.validate(_samples(spec, n)) for n in spec.updates}
            before[str(steps)] = starts[max(spec.updates)]
            prompts = max(spec.updates) * spec.prompts_per_update
            for number in range(spec.pools):
                # From the policy as it was before any method changed it: `saved` is restored after each.
                pool = measured.pool(prompts, "round", steps, number, needs=all_needs(methods))
                entropy = _pool_entropy(measured, pool)
                label = f"rounds, {steps} steps, pool {number + 1} of {spec.pools}"
                for chosen in (progress := Progress(methods, label, len(methods))):
                    of_method = _round(measured, spec, chosen, pool, number, starts, entropy)
                    progress.note = f"{chosen.name} {of_method[-1].reward:.3f}"
                    rows += of_method
                    measured.restore(saved)
        group, problems = measured.settings.group, len(measured.validation_problems)
    record = RoundsRecord(
        seed=seed,
        settings=Fingerprints(study).instrument_settings("rounds", seed),
        made_from=made_from(start, data, study.model.revision),
        commit=made_at,
        reference=spec.reference,
        before=before,
        responses_per_update=spec.prompts_per_update * group,
        validation_responses=problems * spec.samples,
        seconds=time.perf_counter() - started,
        rows=rows,
    )
    write_record(out, record)
    return record


def _samples(spec: Rounds, updates: int) -> int:
    """Responses per validation problem: the end of the round is what comparisons are made of; before it, one each."""
    return spec.samples if updates == max(spec.updates) else 1


def _round(
    measured: MeasuredPolicy,
    spec: Rounds,
    chosen: Method,
    pool: Pool,
    number: int,
    starts: Mapping[int, float],
    entropy: float,
) -> list[RoundRow]:
    """A row for each of `updates`; the policy is left as the last update makes it.

    ``starts`` and ``entropy``: rewards, and entropy on the pool, before the round.
    """
    tokens = with_advantages(pool.batch, pool.rollouts.rewards, chosen)
    batch = TrainingBatch(pool.batch.sequences, tokens)
    rows = []
    clipped = norms = 0.0
    for update in range(1, max(spec.updates) + 1):
        # The same random choices of an objective (such as Clip-Cov's) for all methods.
        torch.manual_seed(seed_of("instruments", measured.seed, "round", measured.steps, number, update))
        prompts = range((update - 1) * spec.prompts_per_update, update * spec.prompts_per_update)
        metrics = measured.update(batch.rows(pool.rows(prompts)), chosen)
        clipped += metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
        norms += metrics["gradient_norm"]
        if update in spec.updates:
            last = update == max(spec.updates)
            rows.append(
                RoundRow(
                    steps=measured.steps,
                    pool=number,
                    method=chosen.name,
                    updates=update,
                    reward=measured.validate(_samples(spec, update)),
                    before=starts[update],
                    clip_fraction=clipped / update,
                    gradient_norm=norms / update,
                    kl_old=metrics["kl_old"],
                    entropy=metrics["entropy"],
                    pool_entropy=_pool_entropy(measured, pool) if last else None,
                    pool_entropy_before=entropy if last else None,
                )
            )
    return rows


def _pool_entropy(measured: MeasuredPolicy, pool: Pool) -> float:
    """Mean entropy per token of the current policy on the responses of a pool, in nats."""
    sequences = pool.batch.sequences
    entropy = measured.policy.score(sequences, measured.settings).entropy
    return float((entropy * sequences.mask).sum() / sequences.mask.sum())


ROUNDS = Instrument("rounds", RoundsRecord, measure_rounds)
