"""A claim on two sides of runs of any trainer: an endpoint per run, their difference, a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import UserError
from .statistics import LEVEL, SEEDS, Array, Difference, seeds_to_show, student, unpaired

Claimed = Literal["above", "below"]
OPEN = "inconclusive"
PLANNED = "valid for a number of runs that was planned, and not if runs are added until it decides"


class Run(NamedTuple):
    """The values of a metric in a run: ``steps`` (increasing) and ``values``, both [values]; NaN if absent."""

    name: str
    seed: int | None
    steps: Array
    values: Array
    notes: tuple[str, ...] = ()  # what was left out when the log was read


class Endpoint(NamedTuple):
    """The number that is taken from each run: the mean of the ``last`` values or, with ``auc``, of the whole curve."""

    last: int = 1
    auc: bool = False
    until: float | None = None  # values at later steps are left out

    def of(self, run: Run) -> tuple[float, float, float]:
        """The number, and the first and last step that it includes. UserError if the run lacks values there."""
        included = run.steps <= (math.inf if self.until is None else self.until)
        steps, values = run.steps[included], run.values[included]
        count = max(2, len(values)) if self.auc else self.last
        if len(values) < count:
            raise UserError(f"{run.name}: has {len(values)} values, and the endpoint needs {count}.")
        steps, values = steps[-count:], values[-count:]
        if len(wrong := steps[~np.isfinite(values)]):
            raise UserError(
                f"{run.name}: no number at step {step_text(wrong[0])} (NaN, null, empty or absent). To leave such runs "
                f"out favours their side: compare all earlier (--until {step_text(wrong[0] - 1)}), or another metric."
            )
        mean = np.trapezoid(values, steps) / (steps[-1] - steps[0]) if self.auc else values.mean()
        return float(mean), float(steps[0]), float(steps[-1])

    def text(self, first: float, last: float) -> str:
        """The endpoint in words, with the first and last step that it includes."""
        if self.auc:
            return f"mean of the curve from step {step_text(first)} to {step_text(last)} (its area over its width)"
        if self.last == 1:
            return f"the last value, at step {step_text(last)}"
        return f"mean of the last {self.last} values, to step {step_text(last)}"


def step_text(step: float) -> str:
    """A step with all its digits, so that it can be given to `--until`."""
    return str(float(step)).removesuffix(".0")


@dataclass(frozen=True)
class RunClaim:
    """The verdict that the metric of side ``a`` is above, or below, that of side ``b``."""

    metric: str
    claimed: Claimed
    margin: float | None
    endpoint: str
    values: dict[str, dict[str, float]]  # side → run → endpoint
    pairing: str
    difference: Difference
    notes: tuple[str, ...]

    @property
    def effect(self) -> float:
        return self.difference.mean if self.claimed == "above" else -self.difference.mean

    @property
    def verdict(self) -> str:
        smaller = ""
        if self.margin is not None and self.effect < self.margin:
            p = self.difference.test(self.margin if self.claimed == "above" else -self.margin) / 2  # of one side
            smaller = f"smaller than {self.margin:g}" if p < LEVEL else ""
        if self.difference.p >= LEVEL:
            return smaller or OPEN
        return "opposite" if self.effect < 0 else f"holds, {smaller}" if smaller else "holds"

    @property
    def more_seeds(self) -> int | None:
        """How many more runs on each side decide four of five such claims: 0 if decided, None if over 1,000."""
        if self.verdict != OPEN:
            return 0
        d = self.difference
        distance = max(abs(d.mean), 0.0 if self.margin is None else self.margin - self.effect)
        # Equal values decide from this number of runs on (`student`, `unpaired`).
        needed = seeds_to_show(distance, d.spread) if math.isfinite(d.spread) else 6 if d.values else 4
        return needed and max(1, needed - d.n)

    def text(self) -> str:
        d = self.difference
        lines = [f"{self.metric} of a is {self.claimed} that of b: {self.verdict}", f"  endpoint: {self.endpoint}"]
        for side, values in self.values.items():
            numbers = [*values.values()]
            listed = ", ".join(f"{value:.4g}" for value in numbers[:8]) + (", …" if len(numbers) > 8 else "")
            lines.append(f"  {side}: mean {np.mean(numbers):.4g} of {len(numbers)} runs ({listed})")
        lines.append(f"  a − b: {self._effect_text()}, 95% interval, {self.pairing}")
        spread = np.ptp(d.values) if d.values else d.spread if math.isfinite(d.spread) else 0.0
        if d.n > 2 and spread <= 1e-12 * abs(d.mean):  # rounding
            lines.append("  all differences are equal; is it the right metric?")
        elif self.more_seeds is None:
            lines.append("  over 1,000 runs on each side would be needed")
        elif self.more_seeds:
            lines.append(f"  about {self.more_seeds} more on each side would decide, if effect and spread stayed")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _effect_text(self) -> str:
        d = self.difference
        few = " (too few for an interval)" if math.isinf(d.low) else f" [{d.low:+.4g}, {d.high:+.4g}]"
        return f"{d.mean:+.4g}{few}"

    def table(self) -> tuple[list[str], list[list[str]]]:
        more = "over 1,000" if self.more_seeds is None else str(self.more_seeds)
        cells = {"metric": self.metric, "claim": f"a is {self.claimed} b", "a − b": self._effect_text()}
        cells |= {"p": f"{self.difference.p:.2g}", "n": str(self.difference.n)}
        cells |= {"verdict": self.verdict, "more seeds": more}
        return [*cells], [[*cells.values()]]

    def data(self) -> dict[str, Any]:
        names = ("metric", "claimed", "margin", "endpoint", "verdict", "pairing", "more_seeds", "notes")
        numbers = {k: None if v in (math.inf, -math.inf) else v for k, v in self.difference.numbers().items()}
        return {name: getattr(self, name) for name in names} | {"difference": numbers, "runs": self.values}


def decide_runs(
    a: Sequence[Run],
    b: Sequence[Run],
    metric: str,
    *,
    margin: float | None = None,
    claimed: Claimed = "above",
    endpoint: Endpoint = Endpoint(),  # noqa: B008
    pair: bool = True,
) -> RunClaim:
    """The verdict on two sides of runs; ``pair``: by seed, if all have one. UserError if they cannot be compared."""
    for side, runs in (("a", a), ("b", b)):
        if len(runs) < 2:
            named = ", ".join(run.name for run in runs)
            raise UserError(f"--{side}: one run ({named}). One run on a side decides nothing: train another seed.")
    if twice := {run.name for run in a} & {run.name for run in b}:
        raise UserError(f"on both sides: {', '.join(sorted(twice))}.")
    endpoints = {side: [endpoint.of(run) for run in runs] for side, runs in (("a", a), ("b", b))}
    all_endpoints = endpoints["a"] + endpoints["b"]
    for which, place in ("end", 2), ("begin", 1):
        steps = [ends[place] for ends in all_endpoints]
        if min(steps) != max(steps):
            shortest = min(zip(steps, [*a, *b], strict=True), key=lambda pair: pair[0])[1].name
            shared = max(set.intersection(*({*run.steps} for run in (*a, *b))), default=0.0)
            advice = f" --until {step_text(shared)} compares all of them there." if which == "end" and shared else ""
            what = "runs" if endpoint.auc or which == "end" else f"the last {endpoint.last} values"
            raise UserError(
                f"{metric}: {what} {which} at different steps, {step_text(min(steps))} ({shortest}) to "
                f"{step_text(max(steps))}.{advice}"
            )
    values = {side: [value for value, _, _ in ends] for side, ends in endpoints.items()}
    order, pairing = _pairs(a, b, pair)
    d = unpaired(values["a"], values["b"])
    if order is not None:
        d = student([x - values["b"][j] for x, j in zip(values["a"], order, strict=True)])
    return RunClaim(
        metric,
        claimed,
        margin,
        endpoint.text(*all_endpoints[0][1:]),
        {side: {run.name: v for run, v in zip(runs, values[side], strict=True)} for side, runs in (("a", a), ("b", b))},
        f"{pairing}, over {d.n} {SEEDS}" if order is not None else pairing,
        d,
        (*(note for run in (*a, *b) for note in run.notes), PLANNED),
    )


def _pairs(a: Sequence[Run], b: Sequence[Run], wanted: bool) -> tuple[list[int] | None, str]:
    """The index in ``b`` of the pair of each run of ``a``, or None if unpaired; and the pairing in words."""
    if not wanted:
        return None, "unpaired, as asked"
    one, two = ([run.seed for run in runs] for runs in (a, b))
    if None in one or None in two:
        return None, "unpaired, since not all runs have a seed in their name or columns"
    for side, seeds in (("a", one), ("b", two)):
        if len(set(seeds)) < len(seeds):
            raise UserError(f"--{side}: two runs have the same seed. Give each run once, or compare with --unpaired.")
    if not set(one) & set(two):
        return None, "unpaired, since no seed is on both sides"
    if alone := sorted(set(one) ^ set(two), key=str):
        listed = ", ".join(map(str, alone))
        raise UserError(f"seeds {listed} are on one side only. Add or leave out runs, or compare all with --unpaired.")
    return [two.index(seed) for seed in one], "paired by seed"
