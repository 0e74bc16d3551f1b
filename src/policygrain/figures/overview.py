"""The overview of a study: what is wrong with all of it, a table of its arms, and a sentence per comparison."""

from __future__ import annotations

import textwrap

from ..analysis import measures
from ..errors import UserError
from ..paths import START
from ..results import StudyResults
from ..study.dependencies import start_seeds
from ..text import columns, shortened
from . import tables

LINES, WIDTH = 15, 80  # of the terminal's last screen


def check_complete(results: StudyResults) -> None:
    """UserError if a run or an evaluation of the study is missing, or if the record of one is damaged."""
    evaluated = results.matrix.evaluated
    models = [f"{START}/seed{seed}" for seed in start_seeds(results.study) if evaluated]
    models += [run.name for run in evaluated]
    ended = {run.name for run in results.summaries}
    missing = [run.name for run in results.matrix.runs if run.name not in ended]
    missing += [f"the evaluation of {name}" for name in models if name not in results.model_evaluations]
    if missing:
        raise UserError(
            f"{results.folder.path}: the study is not finished: {len(missing)} of its results are missing, such as "
            f"{missing[0]}. Run `snakemake all`, which keeps all others."
        )
    _ = results.steps  # reading them names a file that is damaged


def warnings(results: StudyResults) -> list[str]:
    """Why nothing can be concluded: nothing was ever right, or nothing has learned."""
    if not results.matrix.evaluated:
        return []
    arms, columns = tables.evaluated(results), tables.decodings(results)

    def has_learned(arm: str) -> bool:
        try:
            changes = [measures.accuracy_difference(results, arm, START, column=column) for column in columns]
        except UserError:  # no seed in common
            return False
        return any(d.low > 0 if d.n > 1 else d.mean > 0 for d in changes)

    if not any(measures.final_accuracy(results, arm, column=column).mean for arm in arms for column in columns):
        return [
            "No response of any model was ever correct. Read some, at the end of the report: the initial model may be "
            "too weak, or the prompt and `extraction` may not fit it."
        ]
    if any(map(has_learned, arms[1:])):
        return []
    return [
        "Nothing has learned: no method is shown to be more accurate than the initial model. The steps, the learning "
        "rate or the seeds may be too few."
    ]


def comparisons(results: StudyResults) -> list[str]:
    """A sentence per comparison, in the order of the table `contrasts`."""
    texts = []
    for name, setting, auc, sampled, greedy, tokens, p, _, outcome in tables.contrasts(results)[1][0].rows:
        rest = {"final accuracy": sampled, "greedy": greedy, "tokens": tokens}
        numbers = "".join(f"; {what} {text}" for what, text in rest.items() if text)
        texts.append(
            f"{name}{f' ({setting})' if setting else ''}: {auc} points in training ({outcome}, p = {p}){numbers}."
        )
    return texts


def screen(results: StudyResults) -> str:
    """The overview for a terminal: at most 15 lines of 80 columns."""
    head = [line for text in warnings(results) for line in textwrap.wrap(text, WIDTH)]
    compared = [textwrap.wrap(text, WIDTH) for text in comparisons(results)]
    tail = [f"Report: {results.folder.report}    All runs: make ui"]
    if results.matrix.evaluated:
        part = tables.overview(results)
        room = (
            LINES - len(head) - len(tail) - len(compared[0] if compared else []) - 3
        )  # the header, two lines of notes
        more = len(part.rows) - room
        note = part.note + f" {more} more arms are in the report." * (more > 0)
        cells = [[shortened(name, 44), *numbers] for name, *numbers in part.rows[:room]]
        head += [*columns(cells, part.header, "lr"), *textwrap.wrap(note, WIDTH)]
    for text in compared:
        head += text if len(head) + len(text) + len(tail) <= LINES else []
    return "\n".join([*head, *tail]).replace("\u00a0", " ")
