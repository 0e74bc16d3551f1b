"""One round: the same updates by each method, from one policy and one pool of its rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from policygrain.analysis.statistics import over_seeds
from policygrain.objective import Method
from policygrain.provenance import seed_of
from policygrain.text import columns
from policygrain.train.batch import Batch

from .instrument import Instrument
from .measured_policy import MeasuredPolicy, Pool, all_needs, with_advantages
from .options import Rounds
from .records import RoundRow, RoundsRecord


class Round(Instrument[RoundsRecord]):
    """The reward after one round of updates by each method on the same pools of rollouts.

    Each method begins with the same weights and optimizer state, makes its updates on the same minibatches, and is
    validated on the same problems with the same sampling seeds.
    """

    name, options, record = "rounds", Rounds, RoundsRecord
    spec: Rounds

    def __init__(self, spec: Rounds, methods: list[Method]) -> None:
        super().__init__(spec, methods)
        self.before: dict[str, float] = {}
        self.last = max(spec.updates)

    def stage(self, measured: MeasuredPolicy) -> None:
        """A round by each method from each pool."""
        spec, steps, saved = self.spec, measured.steps, measured.save()
        starts = {n: measured.validate(self._samples(n)) for n in spec.updates}
        self.before[str(steps)] = starts[self.last]
        for number in range(spec.pools):
            # Sampled from the policy before its round, because `saved` is restored after each method.
            prompts = self.last * spec.prompts_per_update
            pool = measured.pool(prompts, "round", steps, number, needs=all_needs(self.methods))
            entropy = _pool_entropy(measured, pool)
            label = f"rounds, {steps} steps, pool {number + 1} of {spec.pools}"
            for chosen in (progress := tqdm(self.methods, label)):
                self._round(measured, chosen, pool, number, starts, entropy)
                progress.set_postfix_str(f"{chosen.name} {self.rows[-1].reward:.3f}", refresh=False)
                measured.restore(saved)

    def entries(self, measured: MeasuredPolicy) -> dict[str, Any]:
        """Rewards before the rounds, and sizes of samples."""
        return {
            "before": self.before,
            "responses_per_update": self.spec.prompts_per_update * measured.settings.group,
            "validation_responses": len(measured.validation_problems) * self.spec.samples,
        }

    def _samples(self, updates: int) -> int:
        """Responses per validation problem: `--samples` after the last update, which is compared; else 1."""
        return self.spec.samples if updates == self.last else 1

    def _round(
        self,
        measured: MeasuredPolicy,
        chosen: Method,
        pool: Pool,
        number: int,
        starts: Mapping[int, float],
        entropy: float,
    ) -> None:
        """Make a round of updates and add a row for each of `--updates`; the policy is not restored.

        ``starts`` (by number of updates) and ``entropy``: rewards, and entropy on the pool, before the round.
        """
        spec = self.spec
        batch = Batch(pool.batch.rollouts, with_advantages(pool.batch, pool.rewards, chosen))
        clipped = norms = 0.0
        for update in range(1, self.last + 1):
            # Random choices of objectives (such as Clip-Cov's) are the same for all methods.
            torch.manual_seed(seed_of("instruments", measured.seed, "round", measured.steps, number, update))
            prompts = range((update - 1) * spec.prompts_per_update, update * spec.prompts_per_update)
            metrics = measured.update(batch.rows(pool.rows(prompts)), chosen)
            clipped += metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
            norms += metrics["gradient_norm"]
            if update not in spec.updates:
                continue
            self.rows.append(
                RoundRow(
                    steps=measured.steps,
                    pool=number,
                    method=chosen.name,
                    updates=update,
                    reward=measured.validate(self._samples(update)),
                    before=starts[update],
                    clip_fraction=clipped / update,
                    gradient_norm=norms / update,
                    kl_old=metrics["kl_old"],
                    entropy=metrics["entropy"],
                    pool_entropy=_pool_entropy(measured, pool) if update == self.last else None,
                    pool_entropy_before=entropy if update == self.last else None,
                )
            )


def _pool_entropy(measured: MeasuredPolicy, pool: Pool) -> float:
    """Mean entropy per token of the current policy on the responses of a pool, in nats."""
    rollouts = pool.batch.rollouts
    entropy = measured.policy.score(rollouts, measured.settings).entropy
    return float(entropy.sum()) / sum(len(rollout.ids) for rollout in rollouts)


def text(record: RoundsRecord) -> list[str]:
    """The record as lines of a table: rewards, and the mean difference from the reference over pools, with interval."""
    lines = []
    for steps, stage in pd.DataFrame([row.model_dump() for row in record.rows]).groupby("steps"):
        rewards = 100 * stage.pivot_table("reward", "method", "updates", sort=False)  # means over pools
        last = stage[stage["updates"] == stage["updates"].max()]
        ends = 100 * last.pivot(index="pool", columns="method", values="reward")
        means = last.groupby("method")[["clip_fraction", "gradient_norm"]].mean()
        rows = []
        for name, shown in rewards.iterrows():
            mean, low, high = over_seeds((ends[name] - ends[record.reference]).to_numpy())
            difference = f"{mean:+.1f}" + f" [{low:+.1f}, {high:+.1f}]" * (len(ends) > 1)
            difference = "reference" if name == record.reference else difference
            clipped, norm = means.loc[name]
            rows.append([str(name), *(f"{r:.1f}" for r in shown), difference, f"{clipped:.2%}", f"{norm:.2f}"])
        header = ["method", *(f"after {n}" for n in rewards), f"difference after {rewards.columns[-1]}"]
        lines += [f"{steps} steps: {100 * record.before[str(steps)]:.1f}% before; mean over {len(ends)} pools, in %"]
        lines += columns(rows, [*header, "clipped", "norm"], "lr")
    return [
        *lines,
        f"{record.responses_per_update} responses per update, {record.validation_responses} validation responses; "
        f"intervals over pools of one policy; {record.seconds:.0f} s",
    ]
