"""Samples the responses of an evaluation; finished responses are not sampled again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..data.problem import Problem
from ..data.prompts import PromptRenderer
from ..files import atomic_text, read_json
from ..model.engine import Engine, Request, Rollout
from ..paths import EvaluationFolder
from ..provenance import seed_of
from .protocol import Benchmark, Evaluation

CHUNK = 4096  # responses per file, the most that a crash can lose


class Query(NamedTuple):
    """A response to be sampled."""

    benchmark: Benchmark
    problem: Problem
    sample: int
    request: Request
    greedy: bool = False  # decoded greedily, in addition to the sampled responses


def queries_of(
    evaluation: Evaluation, problems: Mapping[str, Mapping[Problem, int]], renderer: PromptRenderer
) -> list[Query]:
    """All queries of an evaluation.

    ``problems``: benchmark → problem → how often it is repeated; each repetition is answered as often as the others.
    """
    queries = []
    for benchmark in evaluation.benchmarks:
        sampling = benchmark.sampling
        for problem, times in problems[benchmark.name].items():
            prompt = renderer.ids(problem.problem, bool(problem.options.tests))
            for i in range(sampling.n * times):
                seed = seed_of(evaluation.seed, benchmark.name, problem.id, i)
                request = Request(prompt, seed, sampling.max_tokens, sampling.temperature, sampling.top_p, False)
                queries.append(Query(benchmark, problem, i, request))
            if evaluation.greedy and sampling.temperature > 0:
                request = Request(prompt, 0, sampling.max_tokens, 0.0, log_probs=False)
                queries.append(Query(benchmark, problem, 0, request, greedy=True))
    return queries


def sample(queries: Sequence[Query], engine: Callable[[], Engine], folder: EvaluationFolder, key: str) -> list[Rollout]:
    """The responses to all queries, in order. Those that ``folder`` lacks are sampled, in chunks, and written to it.

    ``engine`` opens an engine, which is done only if something is sampled. UserError if ``folder`` cannot be written.
    """
    have: dict[int, Rollout] = {}
    for path in folder.sampled(key):
        have |= {i: Rollout([], ids, finished, []) for i, ids, finished in read_json(path)}
    missing = [i for i in range(len(queries)) if i not in have]
    # Longest first, so that the last sequences, which run in small batches, are short.
    missing.sort(key=lambda i: (queries[i].request.max_tokens, len(queries[i].request.prompt_ids)), reverse=True)
    running = engine() if missing else None
    while running and missing:
        chunk, missing = missing[:CHUNK], missing[CHUNK:]
        have |= zip(chunk, running.generate([queries[i].request for i in chunk]), strict=True)
        rows = [(i, have[i].ids, have[i].finished) for i in chunk]
        atomic_text(folder.responses(key, chunk[0]), json.dumps(rows))
    return [have[i] for i in range(len(queries))]
