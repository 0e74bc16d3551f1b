"""Samples the responses of an evaluation; finished responses are not sampled again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..data.problem import Problem
from ..data.prompts import PromptRenderer
from ..errors import UserError
from ..model.rollout import Engine, Request, Rollout
from ..paths import EvaluationFolder
from ..provenance import seed_of
from .protocol import Evaluation

CHUNK = 4096  # responses per write, the most that a crash can lose


class Query(NamedTuple):
    """A response to be sampled, and the benchmarks that it is graded for."""

    benchmarks: Sequence[str]
    problem: Problem
    sample: int
    request: Request
    greedy: bool = False  # decoded greedily, in addition to the sampled responses


def queries_of(
    evaluation: Evaluation, problems: Mapping[str, Mapping[Problem, int]], renderer: PromptRenderer
) -> list[Query]:
    """All queries of an evaluation. If benchmarks share responses, the sampling seeds are keyed by the first one.

    ``problems``: benchmark → problem → how often it is repeated; each repetition is answered as often as the others.
    """
    queries = []
    for benchmarks in evaluation.sharing_responses():
        sampling, names = benchmarks[0].sampling, [b.name for b in benchmarks]
        for problem, times in problems[names[0]].items():
            prompt = renderer.ids(problem.problem, bool(problem.options.tests))
            for i in range(sampling.n * times):
                seed = seed_of(evaluation.seed, names[0], problem.id, i)
                request = Request(prompt, seed, sampling.max_tokens, sampling.temperature, sampling.top_p, False)
                queries.append(Query(names, problem, i, request))
            if evaluation.greedy and sampling.temperature > 0:
                request = Request(prompt, 0, sampling.max_tokens, 0.0, log_probs=False)
                queries.append(Query(names, problem, 0, request, greedy=True))
    return queries


def sample(queries: Sequence[Query], engine: Callable[[], Engine], folder: EvaluationFolder, key: str) -> list[Rollout]:
    """The responses to all queries, in order. Those that ``folder`` lacks are sampled, in chunks, and written to it.

    ``engine`` is called only if something is sampled. UserError if ``folder`` cannot be written.
    """
    path = folder.responses(key)
    have = _sampled(path)
    missing = [i for i in range(len(queries)) if i not in have]
    # Longest first, so that the last sequences, which run in small batches, are short.
    missing.sort(key=lambda i: (queries[i].request.max_tokens, len(queries[i].request.prompt_ids)), reverse=True)
    folder.path.mkdir(parents=True, exist_ok=True)
    # If a crash has cut the last line short, start a new one.
    cut_short = path.exists() and not path.read_bytes().endswith(b"\n")
    for start in range(0, len(missing), CHUNK):
        chunk = missing[start : start + CHUNK]
        responses = engine().generate([queries[i].request for i in chunk])
        rows = ({"i": i, "ids": r.ids, "finished": r.finished} for i, r in zip(chunk, responses, strict=True))
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write("\n" * cut_short + "".join(json.dumps(row) + "\n" for row in rows))
            cut_short = False
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}. Earlier responses are kept.") from error
        have.update(zip(chunk, responses, strict=True))
    return [have[i] for i in range(len(queries))]


def stopped(responses: Sequence[Rollout], texts: Sequence[str], stop: Sequence[str]) -> tuple[list[Rollout], list[str]]:
    """Responses and their texts, which end before the first stop string; such responses are finished."""
    cut = [text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))] for text in texts]
    ended = [
        replace(response, finished=True) if len(short) < len(text) else response
        for response, text, short in zip(responses, texts, cut, strict=True)
    ]
    return ended, cut


def _sampled(path: Path) -> dict[int, Rollout]:
    """The responses in a file, by position; incomplete lines are ignored."""
    responses = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            responses[int(row["i"])] = Rollout([], [int(i) for i in row["ids"]], bool(row["finished"]), [])
        except (ValueError, KeyError, TypeError):
            continue
    return responses
