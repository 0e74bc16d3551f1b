"""Gradient estimators on the same batches, compared with the true gradient."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from policygrain.objective import Method
from policygrain.objective.part import Part
from policygrain.provenance import seed_of
from policygrain.text import columns

from .gradients import estimate, measure_truths
from .instrument import Instrument
from .measured_policy import MeasuredPolicy, Pool, all_needs
from .options import Estimators
from .quality import Updates, blocks_for
from .records import EstimatorRow, EstimatorsRecord


class Estimation(Instrument[EstimatorsRecord]):
    """The updates of all methods on the same batches, at each distance from the policy that sampled them.

    A policy without a gradient gets no rows; a note says so.
    """

    name, options, record = "estimators", Estimators, EstimatorsRecord
    spec: Estimators

    def __init__(self, spec: Estimators, methods: list[Method]) -> None:
        super().__init__(spec, methods)
        self.notes: list[str] = []
        self.accuracy: dict[str, float] = {}

    def stage(self, measured: MeasuredPolicy) -> None:
        """Sample once, then compare after each number of updates by the reference (`--updates`)."""
        spec, steps, saved = self.spec, measured.steps, measured.save()
        # Both pools are sampled from the behaviour policy, before the first update changes it.
        prompts = spec.batches * spec.prompts_per_update
        pool = measured.pool(prompts, "batches", steps, needs=all_needs(self.methods))
        path = measured.pool(max(1, *spec.updates) * spec.prompts_per_update, "path", steps)
        done = 0
        for updates in sorted(spec.updates):
            for number in range(done, updates):
                measured.update(path.batch.rows(path.rows(self._prompts(number))), measured.reference)
            done = updates
            self._compare(measured, pool, updates)
        measured.restore(saved)

    def entries(self, measured: MeasuredPolicy) -> dict[str, Any]:
        """Accuracy of each measured policy, sizes of samples, and notes."""
        group = measured.settings.group
        return {
            "accuracy": self.accuracy,
            "batches": self.spec.batches,
            "true_responses": self.spec.true_prompts * group,
            "responses_per_batch": self.spec.prompts_per_update * group,
            "notes": self.notes,
        }

    def _prompts(self, number: int) -> range:
        """The prompts of the batch ``number`` of a pool."""
        return range(number * self.spec.prompts_per_update, (number + 1) * self.spec.prompts_per_update)

    def _compare(self, measured: MeasuredPolicy, pool: Pool, updates: int) -> None:
        """A row per method for the current policy; none, and a note, where there is no gradient."""
        spec, methods, steps = self.spec, self.methods, measured.steps
        where = f"{steps} steps, {updates} updates"
        count = sum(p.numel() for p in measured.parameters)
        aggregations: list[Part] = []
        for chosen in methods:
            if chosen.aggregation not in aggregations:
                aggregations.append(chosen.aggregation)
        truth_blocks = blocks_for(len(aggregations), count, spec.true_prompts)
        truths, accuracy = measure_truths(measured, spec.true_prompts, truth_blocks, aggregations, steps, updates)
        self.accuracy[f"{steps}/{updates}"] = accuracy
        if not all(truth.known for truth in truths):
            self.notes.append(
                f"{where}: no rows, because the true gradient cannot be told from 0 by {spec.true_prompts} prompts (a "
                f"policy that solves no problem, or every one, has none). Accuracy: {accuracy:.3f}."
            )
            return
        if any(truth.weak for truth in truths):
            self.notes.append(
                f"{where}: the squared norm of the true gradient is uncertain (its interval contains 0), and so are "
                "cosines and lengths; differences are less affected. More --true-prompts help."
            )
        blocks = blocks_for(len(methods), count, spec.batches)
        collected = Updates({m.name: truths[aggregations.index(m.aggregation)] for m in methods}, spec.batches, blocks)
        for number in tqdm(range(spec.batches), f"estimators, {where}"):
            prompts = self._prompts(number)
            rewards = pool.rewards[prompts.start : prompts.stop]
            seed = seed_of("instruments", measured.seed, "loss", steps, updates, number)
            batch = pool.batch.rows(pool.rows(prompts))
            collected.add(number, estimate(measured, batch, rewards, methods, seed))
        empty = int((~collected.any_gradient).sum())
        if empty == spec.batches:
            self.notes.append(f"{where}: no rows, because no batch has a gradient: all rewards of a group are equal.")
            return
        if empty:
            self.notes.append(
                f"{where}: {empty} of {spec.batches} batches have no gradient, because all rewards of a group are "
                "equal; they count in means of updates, and not in means of cosines."
            )
        for chosen in methods:
            values, determined = collected.measures(chosen.name, spec.reference)
            self.rows.append(EstimatorRow(steps=steps, updates=updates, estimator=chosen.name, **values))
            if not determined:
                self.notes.append(
                    f"{where}: {chosen.name}: its mean update cannot be told from 0 by {spec.batches} batches, so its "
                    "bias_cosine is not known. More batches may tell."
                )


def text(record: EstimatorsRecord) -> list[str]:
    """The record as lines of a table: values with the half-width of their 95% interval."""

    def shown(value: tuple[float, float, float], digits: int = 3) -> str:
        return f"{value[0]:.{digits}f} ±{(value[2] - value[1]) / 2:.{digits}f}"

    header = ["steps", "updates", "estimator", "bias cosine", "length", "SNR", "cosine", "minus reference"]
    header += ["norm", "clipped", "ratio variance", "samples"]
    rows = [
        [
            f"{row.steps}",
            f"{row.updates}",
            row.estimator,
            shown(row.bias_cosine, 2),
            shown(row.length, 2),
            shown(row.snr, 4),
            shown(row.cosine),
            "reference" if row.estimator == record.reference else shown(row.cosine_difference),
            shown(row.norm, 2),
            f"{row.clip_fraction:.2%}",
            f"{row.ratio_variance:.3g}",
            f"{row.effective_sample_share:.0%}",
        ]
        for row in record.rows
    ]
    accuracies = ", ".join(f"{where} {accuracy:.1%}" for where, accuracy in record.accuracy.items())
    sizes = f"{record.batches} batches of {record.responses_per_batch} responses"
    return [
        *columns(rows, header, "rrlr"),
        f"accuracy at steps/updates: {accuracies}; {sizes}, true gradient of {record.true_responses}; "
        f"± 95% within this policy; {record.seconds:.0f} s",
    ]
