"""Grading of sampled responses, their scores, and the record of each benchmark."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import atomic_bytes
from ..grading import Grader, Item
from ..grading.extraction import extract
from ..grading.notation import compact, is_list
from ..records import BenchmarkRecord, EvaluatedSample

if TYPE_CHECKING:  # figures use the estimators below, without models
    from ..model.engine import Rollout
    from .evaluation import Query


def grade(answers: Sequence[tuple[Query, Rollout, str]], grader: Grader, stop: Sequence[str]) -> list[EvaluatedSample]:
    """Grade responses, each with its query and its text, which counts up to a stop string."""
    texts = [min((text.partition(s)[0] for s in stop), key=len, default=text) for *_, text in answers]
    problems = [query.problem for query, *_ in answers]
    items = [Item(p.answer, text, p.options, p.id) for p, text in zip(problems, texts, strict=True)]
    rows = []
    for (query, response, whole), text, outcome in zip(answers, texts, grader.grade(items), strict=True):
        problem, options = query.problem, query.problem.options
        several = is_list(problem.answer, options.list_answer)
        rows.append(
            EvaluatedSample(
                benchmark=query.benchmark.name,
                id=problem.id,
                sample=query.sample,
                greedy=query.greedy,
                problem=problem.problem,
                gold=problem.answer,
                response=text,
                answer=None if options.tests else extract(text, query.benchmark.extraction, several),
                outcome=outcome,
                tokens=len(response.ids),
                truncated=not response.finished and text == whole,
            )
        )
    return rows


def write_samples(path: Path, rows: Sequence[EvaluatedSample]) -> None:
    import pandas as pd

    # The type is said because it may be that no response has an answer.
    table = pd.DataFrame(rows, columns=list(EvaluatedSample._fields)).astype({"answer": "str"})
    atomic_bytes(path, table.to_parquet(index=False))


def score(rows: Sequence[EvaluatedSample], contaminated: list[int], votes: bool = True) -> BenchmarkRecord:
    """One benchmark's record, of sampled responses; greedily decoded ones have scores alone. ``votes``: with maj@n."""
    greedy = [float(row.outcome == "correct") for row in rows if row.greedy]
    rows = [row for row in rows if not row.greedy]
    answers: dict[str, list[tuple[str | None, bool]]] = defaultdict(list)  # of each problem, and whether they are right
    for row in rows:
        answers[row.id].append((None if row.answer is None else compact(row.answer), row.outcome == "correct"))
    counts = [(len(given), sum(right for _, right in given)) for given in answers.values()]  # more of repeated problems
    scores, least = [right / n for n, right in counts], min(n for n, _ in counts)
    return BenchmarkRecord(
        benchmark=rows[0].benchmark,
        n=least,
        problems=len(answers),
        accuracy=statistics.fmean(scores),
        per_problem=scores,
        contaminated=contaminated,
        pass_at={k: statistics.fmean(pass_at_k(n, c, k) for n, c in counts) for k in powers_of_two(least)},
        majority=statistics.fmean(map(majority, answers.values())) if votes else None,
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
    return sorted({2**i for i in range(n.bit_length())} | {n})


def majority(answers: Sequence[tuple[str | None, bool]]) -> float:
    """maj@n of one problem: whether the most frequent answer is right; in a tie, the mean. None has no vote.

    All right answers are one, however they are written; wrong ones are the same if their texts are.
    """
    winners = statistics.multimode(True if right else answer for answer, right in answers if answer is not None)
    return winners.count(True) / len(winners) if winners else 0.0
