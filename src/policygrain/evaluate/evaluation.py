"""Evaluates models on benchmarks, one after the other with the same engine."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .. import digests
from ..clock import Clock
from ..data.problem import Problem, read_problems, with_repeats
from ..data.prompts import PromptRenderer
from ..data.sources import contaminated
from ..errors import UserError
from ..grading import Grader, open_grader
from ..hub import local_copy
from ..model.engine import open_engine, resolve_engine
from ..model.loading import context_length, load_model, load_tokenizer
from ..model.rollout import Engine
from ..paths import DataFolder, EvaluationFolder, RunFolder, StudyFolder
from ..provenance import commit, hardware, versions
from ..records import EvaluationFacts, ModelEvaluation, write_record
from ..results import model_evaluation
from ..study.schema import Study
from ..train.start_model import check_start_model
from ..trainers.run import check_final_model
from .protocol import Evaluation, evaluation_of
from .sampling import queries_of, sample, stopped
from .scores import grade


def evaluate_study(study: Study, models: Mapping[str, Path], data: DataFolder, results: StudyFolder) -> dict[str, str]:
    """`evaluate` models of a study as it asks. Its initial model may be a name on the hub."""
    start = study.model.start
    on_hub = {name for name, model in models.items() if str(model) == start and not model.exists()}
    local = {name: local_copy(start, study.model.revision) for name in on_hub}
    return evaluate(evaluation_of(study), {**models, **local}, data, results)


def evaluate(
    evaluation: Evaluation, models: Mapping[str, Path], data: DataFolder, results: StudyFolder
) -> dict[str, str]:
    """Evaluate ``models`` (name → folder) and write a `ModelEvaluation` for each; returns name → key.

    ``data``: the problems of the benchmarks. Models that already have a record with the same weights and protocol are
    skipped, and no response is sampled twice.
    """
    problems = {b.name: with_repeats(read_problems(data.benchmark(b.name))) for b in evaluation.benchmarks}
    longest = max(b.sampling.max_tokens for b in evaluation.benchmarks)
    seen = {name: _positions(contaminated(data, name), listed) for name, listed in problems.items()}
    made_at, keys = commit(), {}
    with ExitStack() as stack:
        tests = any(problem.options.tests for listed in problems.values() for problem in listed)
        graders: dict[str, Grader] = {
            extraction: stack.enter_context(open_grader(evaluation.grader, extraction, tests))
            for extraction in dict.fromkeys(b.extraction for b in evaluation.benchmarks)
        }
        for name, model in tqdm(models.items(), "models evaluated"):
            clock = Clock()
            with clock("load"):
                digest = _digest(name, model)
                tokenizer = load_tokenizer(str(model))
                renderer = PromptRenderer(tokenizer, evaluation.prompt, context_length(str(model)) - longest)
                under = protocol(evaluation, renderer, data, digest, next(iter(graders.values())).name)
            folder, key = results.evaluation(name), digests.of_json(under)
            keys[name] = key
            if (there := _evaluation(folder)) is not None and there.key == key and folder.samples.exists():
                # No response depends on which problems are among the training prompts; that alone may have changed.
                records = [r.model_copy(update={"contaminated": seen[r.benchmark]}) for r in there.records]
                if records != there.records:
                    write_record(folder.record, there.model_copy(update={"records": records}))
                continue
            queries = queries_of(evaluation, problems, renderer)
            with clock("engine"):
                engine = cache(partial(_engine, evaluation.engine, str(model)))  # here the last model's engine is freed
                responses = sample(queries, engine, folder, response_key(under))
            with clock("grade"):
                texts = tokenizer.batch_decode([r.ids for r in responses], skip_special_tokens=True)
                responses, texts = stopped(responses, texts, evaluation.stop)
                records = grade(evaluation.benchmarks, queries, responses, texts, graders, folder, seen)
            facts = EvaluationFacts(seconds=clock.seconds, hardware=hardware(), versions=versions(), commit=made_at)
            made = ModelEvaluation(model=name, key=key, protocol=under, facts=facts, records=records)
            write_record(folder.record, made)
            for path in folder.all_responses():
                path.unlink()
    return keys


def _digest(name: str, model: Path) -> str:
    """The digest of a model. UserError if its files are missing or differ from the digest in its record."""
    run = RunFolder(model.parent)
    if model == run.model and not (model / "config.json").exists():
        raise UserError(f"{model}: has no model; train it first ({name}).")
    return check_final_model(run) if model == run.model else check_start_model(model)


def _evaluation(folder: EvaluationFolder) -> ModelEvaluation | None:
    """The evaluation in a folder; None if there is none or it cannot be read."""
    if not folder.record.exists():
        return None
    try:
        return model_evaluation(folder)
    except UserError as error:
        print(f"{error} The model is evaluated again.", file=sys.stderr)
        return None


def _positions(ids: Collection[str], problems: Collection[Problem]) -> list[int]:
    return [position for position, problem in enumerate(problems) if problem.id in ids]


def _engine(name: str, folder: str) -> Engine:
    return open_engine(name, folder, *load_model(folder))


# ---- the protocol: all settings that a score depends on; only scores with the same protocol are compared -------------


def protocol(
    evaluation: Evaluation, renderer: PromptRenderer, data: DataFolder, model: str, grader: str
) -> dict[str, Any]:
    """All settings that a score depends on; ``model`` is the digest of the model, ``grader`` the name of the grader."""
    return {
        "model": model,
        "prompt": renderer.digest,
        "grader": grader,
        "engine": resolve_engine(evaluation.engine),
        **evaluation.model_dump(include={"seed", "greedy", "stop"}, exclude_defaults=True),
        "benchmarks": {
            b.name: b.model_dump(include={"sampling", "extraction"})
            | {"problems": digests.of_file(data.benchmark(b.name))}
            for b in evaluation.benchmarks
        },
    }


def response_key(protocol: dict[str, Any]) -> str:
    """The digest of the parts of a protocol that sampled responses depend on: all but grader, extraction and stop."""
    benchmarks = {name: b | {"extraction": None} for name, b in protocol["benchmarks"].items()}
    return digests.of_json(protocol | {"grader": None, "stop": None, "benchmarks": benchmarks})
