"""From responses to records: verdicts, scores, every text kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import atomic_text
from ..grading import Grader, Options, boxed
from ..rollout.engine import Response
from .sampling import Asked
from .scores import majority, pass_at_k, powers_of_two


def judge(
    asked: Sequence[Asked],
    responses: Sequence[Response],
    texts: Sequence[str],
    grader: Grader,
    store: Path,
    contaminated: Mapping[str, Collection[str]],
) -> list[dict[str, Any]]:
    """Keep each text with its verdict in ``store``; returns one record per benchmark.

    ``contaminated``: of each benchmark, ids of the problems that are among the training prompts.
    """
    problems = [a.problem for a in asked]
    options, ids = [Options.of(p) for p in problems], [p.id for p in problems]
    outcomes = grader.grade([p.answer for p in problems], texts, options, ids)
    samples: dict[str, list[dict[str, Any]]] = {}
    for (benchmark, problem, i, _), response, text, outcome in zip(asked, responses, texts, outcomes, strict=True):
        samples.setdefault(benchmark.name, []).append(
            {"id": problem.id, "sample": i, "outcome": outcome, "gold": problem.answer, "problem": problem.problem}
            | {"response": text, "tokens": len(response.ids), "finished": response.finished}
        )
    for name, rows in samples.items():
        atomic_text(store / f"{name}.jsonl", "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
    return [record(name, rows, contaminated.get(name, ())) for name, rows in samples.items()]


def record(benchmark: str, rows: Sequence[dict[str, Any]], contaminated: Collection[str] = ()) -> dict[str, Any]:
    """One benchmark's record: score per problem, in the order of the file, and what sums it up."""
    by_problem: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault(row["id"], []).append(row)
    right = [sum(r["outcome"] == "correct" for r in group) for group in by_problem.values()]
    n = len(rows) // len(by_problem)
    votes = [
        majority([boxed(r["response"]) for r in group], [r["outcome"] == "correct" for r in group])
        for group in by_problem.values()
    ]
    return {
        "benchmark": benchmark,
        "n": n,
        "problems": len(by_problem),
        "accuracy": sum(right) / len(rows),
        "per_problem": [c / n for c in right],
        # Places of problems that training has seen; without them the score is clean.
        "contaminated": [place for place, identity in enumerate(by_problem) if identity in contaminated],
        "pass_at": {k: sum(pass_at_k(n, c, k) for c in right) / len(right) for k in powers_of_two(n)},
        "majority": sum(votes) / len(votes),
        "outcomes": dict(Counter(r["outcome"] for r in rows)),
        "tokens": sum(r["tokens"] for r in rows),
        "truncated": sum(not r["finished"] for r in rows) / len(rows),
    }
