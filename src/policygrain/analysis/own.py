"""The methods of a study's own, compared with the methods that they change: no claim or question names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..methods import method_names
from ..study import Study
from ..study.runs import CONTROLS, Arm, RunMatrix, run_matrix
from .comparisons import compare
from .findings import planned_questions
from .ledger import Comparison, load_claims
from .statistics import Difference

if TYPE_CHECKING:
    from ..results.reader import StudyResults


class Own(NamedTuple):
    """An own method's arm and that of its base, with their difference; without records, ``missing`` says why."""

    comparison: Comparison
    difference: Difference | None
    missing: str = ""


def own_comparisons(study: Study) -> list[Comparison]:
    """Each arm of an own method with that of the nearest method below it that is trained with the same settings.

    By accuracy where both are evaluated, else by the area under the learning curve.
    """
    matrix = run_matrix(study)
    ledgers = (*load_claims().values(), *planned_questions(study).values())
    named = {name for claim in ledgers for c in claim.comparisons for name in (c.of, c.than)}
    evaluated = {run.arm for run in matrix.evaluated}
    runs = (run for name, runs in matrix.experiments.items() if name != CONTROLS for run in runs)
    found = []
    for arm in (matrix.arms[name] for name in dict.fromkeys(run.arm for run in runs)):
        if arm.method_name not in study.methods or arm.method_name in method_names() or arm.name in named:
            continue
        if (base := _base(study, matrix, arm)) is not None:
            both = {arm.name, base} <= evaluated
            data = {"statistic": "accuracy" if both else "curve", "of": arm.name, "than": base, "claimed": "apart"}
            found.append(Comparison.model_validate(data))
    return found


def _base(study: Study, matrix: RunMatrix, arm: Arm) -> str | None:
    """The nearest base that is trained with the settings of ``arm``; None if there is none."""
    name: str | None = arm.method_name
    while name in study.methods and (name := study.methods[name].base) is not None:
        if (below := Arm(name, arm.settings).name) in matrix.arms:
            return below
        if name in method_names():
            return None
    return None


def own_differences(results: StudyResults) -> list[Own]:
    """What the records say about the study's own methods."""
    found = []
    for c in own_comparisons(results.study):
        try:
            found.append(Own(c, compare(results, c)))
        except UserError as error:
            found.append(Own(c, None, str(error)))
    return found


def own_text(own: Own, label: Callable[[str], str] = str) -> str:
    """A sentence: `pairs − dapo: +1.2 [-0.5, +2.9] points of accuracy, over 8 training seeds.`"""
    c, d = own.comparison, own.difference
    pair = f"{label(c.of)} − {label(c.than)}"
    if d is None:
        return f"{pair}: {own.missing}"
    what = "accuracy" if c.statistic == "accuracy" else "area under the learning curve"
    interval = f" [{d.low:+.1f}, {d.high:+.1f}]" if d.n > 1 else ""
    over = f"over {d.n} {d.unit}" if d.n > 1 else f"one {d.unit.removesuffix('s')}, so there is no interval"
    return f"{pair}: {d.mean:+.1f}{interval} points of {what}, {over}."
