"""Grading of sampled responses, their scores, and the record of each benchmark."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import comb
from typing import TYPE_CHECKING

from ..files import atomic_text
from ..grading import Grader, extract
from ..grading.grader import Item
from ..grading.notation import is_list
from ..paths import EvaluationFolder
from ..records import BenchmarkRecord, EvaluatedSample
from ..study.schema import Study

if TYPE_CHECKING:  # figures use the estimators below, without models
    from ..model.engine import Response
    from .sampling import Query


def grade(
    study: Study,
    queries: Sequence[Query],
    responses: Sequence[Response],
    texts: Sequence[str],
    graders: Mapping[str, Grader],
    folder: EvaluationFolder,
    contaminated: Mapping[str, Collection[str]],
) -> list[BenchmarkRecord]:
    """Grade all responses and write each with its outcome into ``folder``; returns one record per benchmark.

    ``graders``: by extraction protocol. ``contaminated``: benchmark → ids of the problems that are among the training
    prompts.
    """
    records = []
    for benchmark in study.evaluation.benchmarks:
        protocol = benchmark.extraction or study.extraction
        positions = [i for i, query in enumerate(queries) if benchmark.name in query.benchmarks]
        graded = {
            greedy: _samples([(queries[i], responses[i], texts[i]) for i in chosen], graders[protocol])
            for greedy in (False, True)
            if (chosen := [i for i in positions if queries[i].greedy is greedy])
        }
        for greedy, rows in graded.items():
            path = folder.greedy(benchmark.name) if greedy else folder.samples(benchmark.name)
            atomic_text(path, "".join(row.model_dump_json() + "\n" for row in rows))
        lists = {queries[i].problem.id for i in positions if queries[i].problem.options.list_answer}
        record = score(benchmark.name, graded[False], contaminated.get(benchmark.name, ()), protocol, lists)
        added: dict[str, object] = {"majority": None} if queries[positions[0]].problem.options.tests else {}
        if True in graded:
            added["greedy"] = [float(row.outcome == "correct") for row in graded[True]]
        records.append(record.model_copy(update=added))
    return records


def _samples(sampled: Sequence[tuple[Query, Response, str]], grader: Grader) -> list[EvaluatedSample]:
    """Grade responses, each given with its query and its text."""
    items = [Item(q.problem.answer, text, q.problem.options, q.problem.id) for q, _, text in sampled]
    return [
        EvaluatedSample(
            id=query.problem.id,
            sample=query.sample,
            outcome=outcome,
            gold=query.problem.answer,
            problem=query.problem.problem,
            response=text,
            tokens=len(response.ids),
            finished=response.finished,
        )
        for (query, response, text), outcome in zip(sampled, grader.grade_items(items), strict=True)
    ]


def score(
    benchmark: str,
    rows: Sequence[EvaluatedSample],
    contaminated: Collection[str] = (),
    extraction: str = "boxed",
    lists: Collection[str] = (),
) -> BenchmarkRecord:
    """One benchmark's record: a score per problem, in the order of the problem file, and summaries over problems.

    ``lists``: ids of the problems whose answers are lists, although their gold answers may have brackets.
    """
    by_problem: dict[str, list[EvaluatedSample]] = {}
    for row in rows:
        by_problem.setdefault(row.id, []).append(row)
    # (responses, correct ones) of each problem; a problem that is repeated has more.
    counts = [(len(group), sum(r.outcome == "correct" for r in group)) for group in by_problem.values()]
    scores, least = [correct / n for n, correct in counts], min(n for n, _ in counts)
    votes = [
        majority(
            [extract(r.response, extraction, is_list(r.gold, r.id in lists)) for r in group],
            [r.outcome == "correct" for r in group],
        )
        for group in by_problem.values()
    ]
    return BenchmarkRecord(
        benchmark=benchmark,
        n=least,
        problems=len(by_problem),
        accuracy=statistics.fmean(scores),
        per_problem=scores,
        contaminated=[position for position, identity in enumerate(by_problem) if identity in contaminated],
        pass_at={k: statistics.fmean(pass_at_k(n, c, k) for n, c in counts) for k in powers_of_two(least)},
        majority=sum(votes) / len(votes),
        outcomes=dict(Counter(r.outcome for r in rows)),
        tokens=sum(r.tokens for r in rows),
        truncated=sum(not r.finished for r in rows) / len(rows),
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
