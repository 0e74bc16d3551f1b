"""The controls of a study: four arms whose outcome is known, and the tests of these outcomes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import UserError
from ..study.runs import control_arms
from . import measures
from .statistics import LEVEL, SEEDS, Difference, student
from .verdicts import holm

if TYPE_CHECKING:
    import pandas as pd

    from ..results import StudyResults

SHARE = 0.25  # of the unchanged method's gain in training; smaller effects count as none
Outcome = Literal["passed", "failed", "inconclusive"]
EXPECTED = {
    "other_seeds": "other sampling seeds make no difference",
    "shuffled_rewards": "shuffled rewards do not raise accuracy",
    "zero_learning_rate": "a learning rate of 0 changes nothing",
    "worse": "the worse method is found worse",
}


class Control(NamedTuple):
    """One control: measured difference in points, and whether it is as expected.

    `inconclusive`: too few seeds to show that an effect is small, or that it is large.
    """

    role: str
    arms: str
    difference: Difference | None  # None: no records
    p: float  # of an effect beyond the margin (`controls`), corrected; for `worse` of an effect above 0
    outcome: Outcome
    result: str  # in words

    @property
    def expected(self) -> str:
        """The expected outcome, in words."""
        return EXPECTED[self.role]


def controls(results: StudyResults) -> list[Control]:
    """The controls of a study, in points of the area under the learning curve; empty if it has none.

    The margin is a quarter of the unchanged method's gain over its initial model. `other_seeds` and `shuffled_rewards`
    pass if their 95% interval lies within the margin (for `shuffled_rewards` below it: they may lower accuracy), fail
    if the effect is shown to lie beyond, and are inconclusive otherwise. These two tests are corrected together, so at
    most 5% of sound studies fail. `worse` passes if its effect is shown to be above 0, as findings are; here the error
    would be to pass wrongly, so it is tested alone. With a learning rate of 0 validation accuracy must be constant,
    which needs no test. Only the planned seeds are used, not seeds added later. A control without records has failed.
    """
    arms = control_arms(results.study)
    if not arms or results.study.sanity_checks is None:
        return []
    control_seeds = results.study.sanity_checks.seeds
    seeds = set(results.study.seeds if control_seeds is None else control_seeds)
    base, (other, shuffled, constant, worse) = arms["baseline"].name, (arms[role].name for role in EXPECTED)
    measurements = {
        "other_seeds": (f"{other} − {base}", lambda: _between(results, other, base, seeds)),
        "shuffled_rewards": (shuffled, lambda: _learned(results, shuffled, seeds)),
        "zero_learning_rate": (constant, lambda: _moved(results, constant, seeds)),
        "worse": (f"{base} − {worse}", lambda: _between(results, base, worse, seeds)),
    }
    differences: dict[str, Difference] = {}
    judged: dict[str, Control] = {}
    for role, (text, measure) in measurements.items():
        try:
            differences[role] = measure()
        except UserError as error:
            judged[role] = Control(role, text, None, 1.0, "failed", f"no records: {error}")
    margin = max(0.0, SHARE * _gain(results, base, seeds))
    p = {role: _beyond(role, d, 0.0 if role == "worse" else margin) for role, d in differences.items()}
    alarms = [role for role in ("other_seeds", "shuffled_rewards") if role in p]
    p |= zip(alarms, holm([p[role] for role in alarms]), strict=True)
    for role, d in differences.items():
        judged[role] = Control(role, measurements[role][0], d, p[role], *_judge(role, d, p[role], margin))
    return [judged[role] for role in measurements]


def _beyond(role: str, d: Difference, margin: float) -> float:
    """The p-value of an effect beyond the margin: in either direction for `other_seeds`, else above it."""
    if d.n < 2:
        return 1.0
    return min(1.0, 2 * d.above(margin), 2 * d.below(-margin)) if role == "other_seeds" else d.above(margin)


def _judge(role: str, d: Difference, p: float, margin: float) -> tuple[Outcome, str]:
    """The outcome of a control, and its result in words."""
    if role == "zero_learning_rate":
        return ("passed", "constant") if d.mean == 0 else ("failed", "validation accuracy changed")
    if role == "worse":
        return ("passed", "shown") if p < LEVEL else ("failed", "not shown")
    if p < LEVEL:
        return "failed", f"beyond {margin:.2g} points"
    if d.n > 1 and d.high < margin and (role == "shuffled_rewards" or d.low > -margin):
        return "passed", f"within {margin:.2g} points"
    return "inconclusive", f"too few seeds to tell whether within {margin:.2g} points"


def _gain(results: StudyResults, base: str, seeds: set[int]) -> float:
    """Gain of the unchanged method over its initial model, in points; 0 without records."""
    try:
        return _learned(results, base, seeds).mean
    except UserError:
        return 0.0


def _between(results: StudyResults, one: str, two: str, seeds: set[int]) -> Difference:
    """Difference of the areas under two learning curves."""
    a, b = (measures.area(results, arm) for arm in (one, two))
    return _over(results, a - b, seeds)


def _learned(results: StudyResults, arm: str, seeds: set[int]) -> Difference:
    """Area under the learning curve minus the curve's first value, which would be the area without learning."""
    first = {seed: 100 * c["accuracy"].iloc[0] for seed, c in measures.learning_curve(results, arm).items()}
    values = measures.area(results, arm)
    return _over(results, values - values.index.map(first), seeds)


def _moved(results: StudyResults, arm: str, seeds: set[int]) -> Difference:
    """The largest change of validation accuracy during training, over all seeds. Both limits are this value."""
    curves = {seed: c["accuracy"] for seed, c in measures.learning_curve(results, arm).items() if seed in seeds}
    if not curves:
        raise UserError(f"no seed of {arm!r} has been trained: run `snakemake all`.")
    moved = max(100 * float((values - values.iloc[0]).abs().max()) for values in curves.values())
    return replace(student([moved] * len(curves), SEEDS), low=moved, high=moved)


def _over(results: StudyResults, by_seed: pd.Series, seeds: set[int]) -> Difference:
    return measures.over_units(results, by_seed[by_seed.index.isin(seeds)])
