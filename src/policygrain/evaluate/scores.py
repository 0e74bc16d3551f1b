"""Grading of sampled responses, their scores, and the record of each benchmark."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import atomic_bytes
from ..grading import Grader, Item
from ..grading.extraction import extract
from ..grading.notation import is_list
from ..records import BenchmarkRecord, EvaluatedSample

if TYPE_CHECKING:  # figures use the estimators below, without models
    from ..model.engine import Rollout
    from .evaluation import Query


def grade(answers: Sequence[tuple[Query, Rollout, str]], grader: Grader, stop: Sequence[str]) -> list[EvaluatedSample]:
    """Grade responses, each given with its query and its text, of which only what precedes a stop string counts."""
    texts = [min((text.partition(s)[0] for s in stop), key=len, default=text) for *_, text in answers]
    problems = [query.problem for query, *_ in answers]
    items = [Item(p.answer, text, p.options, p.id) for p, text in zip(problems, texts, strict=True)]
    rows = []
    for (query, response, whole), text, outcome in zip(answers, texts, grader.grade(items), strict=True):
        problem, options = query.problem, query.problem.options
        lists = is_list(problem.answer, options.list_answer)  # gold answers that are lists may have brackets
        rows.append(
            EvaluatedSample(
                benchmark=query.benchmark.name,
                id=problem.id,
                sample=query.sample,
                greedy=query.greedy,
                problem=problem.problem,
                gold=problem.answer,
                response=text,
                answer=None if options.tests else extract(text, query.benchmark.extraction, lists),
                outcome=outcome,
                tokens=len(response.ids),
                truncated=not response.finished and text == whole,
            )
        )
    return rows


def write_samples(path: Path, rows: Sequence[EvaluatedSample]) -> None:
    """Write graded responses as Parquet, atomically."""
    import pandas as pd

    # The type is said because no response may have an answer.
    table = pd.DataFrame(rows, columns=list(EvaluatedSample._fields)).astype({"answer": "str"})
    atomic_bytes(path, table.to_parquet(index=False))


def score(rows: Sequence[EvaluatedSample], contaminated: list[int], votes: bool = True) -> BenchmarkRecord:
    """One benchmark's record: a score per problem, in the order of the problem file, and summaries over problems.

    They are of sampled responses; greedily decoded ones have scores alone. ``votes``: with a majority vote.
    """
    greedy = [float(row.outcome == "correct") for row in rows if row.greedy]
    rows = [row for row in rows if not row.greedy]
    by_problem: dict[str, list[EvaluatedSample]] = {}
    for row in rows:
        by_problem.setdefault(row.id, []).append(row)
    groups = by_problem.values()
    correct = [[row.outcome == "correct" for row in group] for group in groups]
    counts = [(len(outcomes), sum(outcomes)) for outcomes in correct]  # a problem that is repeated has more
    scores, least = [right / n for n, right in counts], min(n for n, _ in counts)
    won = [majority([r.answer for r in group], right) for group, right in zip(groups, correct, strict=True)]
    return BenchmarkRecord(
        benchmark=rows[0].benchmark,
        n=least,
        problems=len(by_problem),
        accuracy=statistics.fmean(scores),
        per_problem=scores,
        contaminated=contaminated,
        pass_at={k: statistics.fmean(pass_at_k(n, c, k) for n, c in counts) for k in powers_of_two(least)},
        majority=statistics.fmean(won) if votes else None,
        outcomes=dict(Counter(r.outcome for r in rows)),
        tokens=sum(r.tokens for r in rows),
        truncated=sum(r.truncated for r in rows) / len(rows),
        greedy=greedy or None,
    )


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k samples is correct) from n samples (arXiv 2107.03374 eq. 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n, got k={k}, n={n}")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4 … up to n, and n itself."""
    return sorted({2**i for i in range(n.bit_length())} | {n})


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """maj@n of one problem: 1 if the most frequent answer is correct, else 0; in a tie, the mean over the tied answers.

    Answers are compared as text. None, a response without an answer, gets no vote.
    """
    winners = statistics.multimode(a for a in answers if a is not None)
    is_correct = dict(zip(answers, correct, strict=True))
    return sum(is_correct[w] for w in winners) / len(winners) if winners else 0.0
