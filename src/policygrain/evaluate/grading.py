"""Grading of sampled responses, and the record of each benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..files import atomic_text
from ..grading import Grader, Options, extract
from ..model.engine import Response
from ..results.layout import EvaluationFolder
from ..results.schema import BenchmarkRecord, EvaluatedSample
from ..study.schema import Study
from .sampling import Query
from .scores import majority, pass_at_k, powers_of_two


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
        record = score(benchmark.name, graded[False], contaminated.get(benchmark.name, ()), protocol)
        greedy_scores = [float(row.outcome == "correct") for row in graded[True]] if True in graded else None
        records.append(record.model_copy(update={"greedy": greedy_scores}))
    return records


def _samples(sampled: Sequence[tuple[Query, Response, str]], grader: Grader) -> list[EvaluatedSample]:
    """Each sampled response, given with its query and text, with its outcome."""
    problems, texts = [query.problem for query, _, _ in sampled], [text for _, _, text in sampled]
    options, ids = [Options.of(p) for p in problems], [p.id for p in problems]
    outcomes = grader.grade([p.answer for p in problems], texts, options, ids)
    samples = []
    for (query, response, text), outcome in zip(sampled, outcomes, strict=True):
        problem = query.problem
        sample = EvaluatedSample(
            id=problem.id,
            sample=query.sample,
            outcome=outcome,
            gold=problem.answer,
            problem=problem.problem,
            response=text,
            tokens=response.length,
            finished=response.finished,
        )
        samples.append(sample)
    return samples


def score(
    benchmark: str,
    rows: Sequence[EvaluatedSample],
    contaminated: Collection[str] = (),
    extraction: str = "boxed",
) -> BenchmarkRecord:
    """One benchmark's record: a score per problem, in the order of the problem file, and summaries over problems."""
    by_problem: dict[str, list[EvaluatedSample]] = {}
    for row in rows:
        by_problem.setdefault(row.id, []).append(row)
    correct = [sum(r.outcome == "correct" for r in group) for group in by_problem.values()]
    n = len(rows) // len(by_problem)
    votes = [
        majority([extract(r.response, extraction) for r in group], [r.outcome == "correct" for r in group])
        for group in by_problem.values()
    ]
    return BenchmarkRecord(
        benchmark=benchmark,
        n=n,
        problems=len(by_problem),
        accuracy=sum(correct) / len(rows),
        per_problem=[c / n for c in correct],
        contaminated=[position for position, identity in enumerate(by_problem) if identity in contaminated],
        pass_at={k: sum(pass_at_k(n, c, k) for c in correct) / len(correct) for k in powers_of_two(n)},
        majority=sum(votes) / len(votes),
        outcomes=dict(Counter(r.outcome for r in rows)),
        tokens=sum(r.tokens for r in rows),
        truncated=sum(not r.finished for r in rows) / len(rows),
    )
