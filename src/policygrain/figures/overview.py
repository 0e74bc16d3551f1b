"""The overview of a study: what is wrong with all of it, a table of its arms, and a sentence per comparison."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from ..analysis import Estimate, accuracy, measures
from ..analysis.contrasts import TOO_FEW, Contrast, contrasts
from ..errors import UserError
from ..paths import START
from ..results import StudyResults
from ..study.stages import start_seeds
from ..text import columns, shortened
from .labels import name_of, pair_text, parts_text, points_text, settings_of
from .shown import evaluated_headline
from .tables import Part

LINES, WIDTH = 15, 80  # of the terminal's last screen
HEADER = ("accuracy in percent", "sampled", "greedy", "tokens")


class Row(NamedTuple):
    """An evaluated arm: accuracy over the benchmarks, and tokens per sampled response."""

    arm: str
    sampled: Estimate
    greedy: Estimate | None
    tokens: float


def check_complete(results: StudyResults) -> None:
    """UserError if a run or an evaluation of the study is missing, or if the record of one is damaged."""
    models = [f"{START}/seed{seed}" for seed in start_seeds(results.study)]
    models += [run.name for run in results.matrix.evaluated]
    ended = {run.name for run in results.summaries}
    missing = [run.name for run in results.matrix.runs if run.name not in ended]
    missing += [f"the evaluation of {name}" for name in models if name not in results.model_evaluations]
    if missing:
        raise UserError(
            f"{results.folder.path}: the study is not finished: {len(missing)} of its results are missing, such as "
            f"{missing[0]}. Run `snakemake all`, which keeps all others."
        )
    _ = results.steps  # reading them names a file that is damaged


def rows(results: StudyResults) -> list[Row]:
    """The initial model, then the arms of the experiments that are evaluated, in their order."""
    evaluated = [name for name, experiment in results.study.experiments.items() if experiment.evaluate]
    unit, found = measures.unit_of(results.study), []
    for arm in dict.fromkeys([START, *(arm for name in evaluated for arm in results.arms(name))]):
        scores = [[results.scores(arm, b, column=column) for b in results.benchmarks] for column in _columns(results)]
        sampled, *greedy = (accuracy(of, unit) for of in scores)
        tokens = float(measures.response_length(results, arm).mean())
        found.append(Row(arm, sampled, greedy[0] if greedy else None, tokens))
    return found


def _columns(results: StudyResults) -> list[str]:
    return ["per_problem"] if results.evaluations["greedy"].isna().any() else ["per_problem", "greedy"]


def table(results: StudyResults, shown: Sequence[Row]) -> Part:
    """The rows as text."""
    among = [row.arm for row in shown]
    cells = [
        [name_of(results, row.arm, among), _percent(row.sampled), _percent(row.greedy), f"{row.tokens:.0f}"]
        for row in shown
    ]
    counts, unit = sorted({row.sampled.n for row in shown}), shown[0].sampled.unit
    over = f"± 95% over {' or '.join(map(str, counts))} {unit}" if counts[-1] > 1 else f"of one {unit[:-1]}"
    benchmarks = f"{len(results.benchmarks)} benchmarks" if len(results.benchmarks) > 1 else results.benchmarks[0]
    return Part(HEADER, cells, f"Mean of {benchmarks}, {over}; tokens per sampled response.")


def _percent(estimate: Estimate | None) -> str:
    """`27.5 ± 1.8`: the mean, and the larger half of its interval."""
    if estimate is None:
        return ""
    half = max(estimate.high - estimate.mean, estimate.mean - estimate.low)
    return f"{100 * estimate.mean:.1f}" + f"\u00a0±\u00a0{100 * half:.1f}" * (estimate.n > 1)


def warnings(results: StudyResults, shown: Sequence[Row]) -> list[str]:
    """Why nothing can be concluded: nothing was ever right, or nothing has learned."""
    texts = []
    trained = [row.arm for row in shown if row.arm != START]
    if not any(row.sampled.mean or (row.greedy and row.greedy.mean) for row in shown):
        texts.append(
            "No response of any model was ever correct. Read some, at the end of the report: the initial model may be "
            "too weak, or the prompt and `extraction` may not fit it."
        )
    elif trained and not any(_has_learned(results, arm) for arm in trained):
        texts.append(
            "Nothing has learned: no method is shown to be more accurate than the initial model. The steps, the "
            "learning rate or the seeds may be too few."
        )
    return texts


def _has_learned(results: StudyResults, arm: str) -> bool:
    try:
        changes = [measures.accuracy_difference(results, arm, START, column=column) for column in _columns(results)]
    except UserError:  # no seed in common
        return False
    return any(d.low > 0 if d.n > 1 else d.mean > 0 for d in changes)


def comparisons(results: StudyResults) -> list[str]:
    """A sentence per comparison: those of one part first, in each kind those that are significant first."""
    return [_sentence(results, c) for c in _compared(results)]


def _compared(results: StudyResults) -> list[Contrast]:
    return sorted(contrasts(results), key=lambda c: (c.pair.whole, not c.decided, c.p))


def _sentence(results: StudyResults, c: Contrast) -> str:
    """Both endpoints, length, and whether the first is shown to differ."""
    study, settings = results.study, settings_of(c.pair)
    where = f" ({settings})" if settings else ""
    found = TOO_FEW if c.outcome == TOO_FEW else f"p = {c.p:.2g}, {'significant' if c.decided else 'inconclusive'}"
    if c.identical or c.auc.n < 2:
        found = "identical" if c.identical else f"one {c.auc.unit[:-1]}, so there is no interval"
    finals = [f"{points_text(d)} {name}" for name, d in (("sampled", c.sampled), ("greedy", c.greedy)) if d]
    final = f"; final accuracy {', '.join(finals)}" if finals else ""
    length = f"; tokens {points_text(c.length)}" if c.length else ""
    whole = f"; whole methods, which differ in {parts}" if (parts := parts_text(c.pair)) else ""
    return (
        f"{pair_text(study, c.pair)}{where}: {points_text(c.auc)} points in training ({found}){final}{length}{whole}."
    )


def screen(results: StudyResults) -> str:
    """The overview for a terminal: at most 15 lines of 80 columns."""
    try:
        everything = rows(results)
    except UserError:  # no model was evaluated
        everything = []
    head = [text for warning in warnings(results, everything) for text in textwrap.wrap(warning, WIDTH)]
    tail = [f"Report: {results.folder.report}    All runs: make ui"]
    compared = [textwrap.wrap(text, WIDTH) for text in comparisons(results)] or [[]]
    if not everything:
        return "\n".join([*head, *compared[0], *tail])
    room = LINES - len(head) - len(compared[0]) - len(tail) - 3  # the header, and two lines of notes
    # The headline first, then the arms of the comparison.
    first = [arm.name for c in _compared(results)[:1] for arm in (c.pair.reference, c.pair.arm)]
    names = [START, *evaluated_headline(results.study), *first]
    places = {name: place for place, name in reversed([*enumerate(names)])}
    wanted = max(2, min(room, len(places) if len(compared) > 1 else room))
    chosen = sorted(everything, key=lambda row: places.get(row.arm, len(names)))[:wanted]
    more = len(everything) - len(chosen)
    part = table(results, chosen)
    cells = [[shortened(name, 44), *numbers] for name, *numbers in part.rows]
    notes = textwrap.wrap(part.note + f" {more} more arms are in the report." * bool(more), WIDTH)
    lines = [*head, *columns(cells, part.header, "lr"), *notes]
    for text in compared:
        lines += text if len(lines) + len(text) + len(tail) <= LINES else []
    return "\n".join([*lines, *tail]).replace("\u00a0", " ")
