"""Evaluates models on benchmarks, one after the other; finished responses are not sampled again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, Field
from tqdm import tqdm

from .. import digests
from ..clock import Clock
from ..data.problem import Problem, read_problems, with_repeats
from ..data.prompts import PromptRenderer
from ..data.sets import sampling_of
from ..data.sources import contaminated
from ..errors import UserError
from ..files import atomic_text, read_json
from ..grading import Grader, open_grader
from ..hub import local_copy
from ..model.engine import Request, Rollout
from ..model.loading import context_length, load_model, load_tokenizer
from ..model.vllm_engine import open_engine, resolve_engine
from ..paths import DataFolder, EvaluationFolder, RunFolder, StudyFolder
from ..provenance import commit, hardware, seed_of, versions
from ..records import EvaluationFacts, ModelEvaluation, Record, read_record, write_record
from ..study import schema
from ..study.dependencies import VERSIONS
from ..study.schema import Extraction, Prompt, Sampling, Study
from ..train.start_model import check_start_model
from ..trainers.run import check_final_model
from .scores import grade, score, write_samples

CHUNK = 4096  # responses per file, the most that a crash can lose


class Benchmark(schema.Benchmark):
    """A benchmark, as it is sampled and graded."""

    extraction: Extraction = "boxed"
    sampling: Sampling


class Evaluation(Record):
    """Everything but the model and the problems that a score depends on."""

    benchmarks: Annotated[list[Benchmark], Field(min_length=1), AfterValidator(schema.distinct_names)]
    prompt: Prompt
    grader: Literal["numeric", "math"]
    engine: Literal["auto", "vllm", "transformers"]
    seed: int
    greedy: bool = False  # one greedily decoded response per problem besides the sampled ones
    stop: tuple[schema.Text, ...] = ()


def evaluate_study(study: Study, models: Mapping[str, Path], data: DataFolder, results: StudyFolder) -> dict[str, str]:
    """`evaluate` models of a study as it asks; in a process that trains, with the engine of training."""
    start, asked = study.model.start, study.evaluation
    local = {name: local_copy(start, study.model.revision) for name, model in models.items() if str(model) == start}
    benchmarks = []
    for benchmark in asked.benchmarks:
        chosen = {"sampling": sampling_of(study, benchmark), "extraction": benchmark.extraction or study.extraction}
        benchmarks.append(Benchmark(**dict(benchmark) | chosen))
    evaluation = Evaluation(
        benchmarks=benchmarks,
        prompt=study.prompt,
        grader=study.grader,
        engine=study.training.engine if asked.after_training else asked.engine,
        seed=asked.seed,
        greedy=asked.greedy,
        stop=tuple(asked.stop),
    )
    return evaluate(evaluation, {**models, **local}, data, results)


def evaluate(
    evaluation: Evaluation, models: Mapping[str, Path], data: DataFolder, results: StudyFolder
) -> dict[str, str]:
    """Evaluate models (name → folder) that have no record with their weights and protocol; returns name → key."""
    problems = {b.name: with_repeats(read_problems(data.benchmark(b.name))) for b in evaluation.benchmarks}
    seen = {name: contaminated(data, name) for name in problems}
    positions = {name: [i for i, p in enumerate(problems[name]) if p.id in ids] for name, ids in seen.items()}
    made_at, keys = commit(), {}
    programs = {name for name, listed in problems.items() if any(problem.options.tests for problem in listed)}
    with ExitStack() as stack:
        graders: dict[str, Grader] = {
            extraction: stack.enter_context(open_grader(evaluation.grader, extraction, tests=bool(programs)))
            for extraction in dict.fromkeys(b.extraction for b in evaluation.benchmarks)
        }
        for name, model in tqdm(models.items(), "models evaluated"):
            clock = Clock()
            with clock("load"):
                digest = _digest(name, model)
                renderer = PromptRenderer(load_tokenizer(str(model)), evaluation.prompt, context_length(str(model)))
                under = protocol(evaluation, renderer, data, digest, next(iter(graders.values())).name)
            folder, keys[name] = results.evaluation(name), digests.of_json(under)
            if folder.record.exists() and folder.samples.exists():
                there = read_record(ModelEvaluation, folder.record, "Remove it, and the model is evaluated again.")
                if there.key == keys[name]:
                    # No response depends on which problems are among the training prompts, which may have changed.
                    records = [r.model_copy(update={"contaminated": positions[r.benchmark]}) for r in there.records]
                    if records != there.records:
                        write_record(folder.record, there.model_copy(update={"records": records}))
                    continue
            queries = queries_of(evaluation, problems, renderer)
            with clock("engine"):
                # Responses depend on all of the protocol but grader, extraction and stop.
                of_each = {name: b | {"extraction": None} for name, b in under["benchmarks"].items()}
                key = digests.of_json(under | {"grader": None, "stop": None, "benchmarks": of_each})
                responses = sample(queries, evaluation.engine, str(model), folder, key)
            with clock("grade"):
                texts = renderer.responses([q.problem for q in queries], [response.ids for response in responses])
                answered, rows, records = zip(queries, responses, texts, strict=True), [], []
                for benchmark, answers in groupby(answered, key=lambda answer: answer[0].benchmark):
                    graded = grade([*answers], graders[benchmark.extraction], evaluation.stop)
                    records.append(score(graded, positions[benchmark.name], votes=benchmark.name not in programs))
                    rows += graded
                write_samples(folder.samples, rows)
            facts = EvaluationFacts(seconds=clock.seconds, hardware=hardware(), versions=versions(), commit=made_at)
            made = ModelEvaluation(model=name, key=keys[name], protocol=under, facts=facts, records=records)
            write_record(folder.record, made)
            for path in folder.sampled():
                path.unlink()
    return keys


def _digest(name: str, model: Path) -> str:
    """The digest of a model. UserError if its files are missing or differ from the digest in its record."""
    run = RunFolder(model.parent)
    if model != run.model:
        return check_start_model(model)
    if not (model / "config.json").exists():
        raise UserError(f"{model}: has no model; train it first ({name}).")
    return check_final_model(run)


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
    """All queries of an evaluation; ``problems``: benchmark → problem → how often it is repeated."""
    queries = []
    for benchmark in evaluation.benchmarks:
        sampling = benchmark.sampling
        for problem, times in problems[benchmark.name].items():
            prompt = renderer.ids(problem.problem, bool(problem.options.tests), sampling.max_tokens)
            for i in range(sampling.n * times):
                seed = seed_of(evaluation.seed, benchmark.name, problem.id, i)
                request = Request(prompt, seed, sampling.max_tokens, sampling.temperature, sampling.top_p, False)
                queries.append(Query(benchmark, problem, i, request))
            if evaluation.greedy and sampling.temperature > 0:
                request = Request(prompt, 0, sampling.max_tokens, 0.0, log_probs=False)
                queries.append(Query(benchmark, problem, 0, request, greedy=True))
    return queries


def sample(queries: Sequence[Query], engine: str, model: str, folder: EvaluationFolder, key: str) -> list[Rollout]:
    """The responses to all queries, in order. Those that ``folder`` lacks are sampled, in chunks, and written to it."""
    have: dict[int, Rollout] = {}
    for path in folder.sampled(key):
        have |= {i: Rollout([], ids, finished, []) for i, ids, finished in read_json(path)}
    missing = [i for i in range(len(queries)) if i not in have]
    # Longest first, so that the last sequences, which run in small batches, are short.
    missing.sort(key=lambda i: (queries[i].request.max_tokens, len(queries[i].request.prompt_ids)), reverse=True)
    how: dict[str, Any] = {"small": True}
    if resolve_engine(engine) == "vllm":  # it loads the model itself; an engine that is open takes these weights
        how = {"place": torch.device("cpu"), "dtype": "auto", "fused": False}
    running = open_engine(engine, model, *load_model(model, **how)) if missing else None
    while running and missing:
        chunk, missing = missing[:CHUNK], missing[CHUNK:]
        have |= zip(chunk, running.generate([queries[i].request for i in chunk]), strict=True)
        rows = [(i, have[i].ids, have[i].finished) for i in chunk]
        atomic_text(folder.responses(key, chunk[0]), json.dumps(rows))
    return [have[i] for i in range(len(queries))]


def protocol(
    evaluation: Evaluation, renderer: PromptRenderer, data: DataFolder, model: str, grader: str
) -> dict[str, Any]:
    """All settings that a score depends on; ``model`` is a digest, ``grader`` the name of a grader."""
    return {
        "model": model,
        "prompt": renderer.digest,
        "grader": grader,
        "engine": resolve_engine(evaluation.engine),
        "version": VERSIONS["evaluation"],
        **evaluation.model_dump(include={"seed", "greedy", "stop"}, exclude_defaults=True),
        "benchmarks": {
            b.name: b.model_dump(include={"sampling", "extraction"})
            | {"problems": digests.of_file(data.benchmark(b.name))}
            for b in evaluation.benchmarks
        },
    }
