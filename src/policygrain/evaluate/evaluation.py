"""Evaluates models on the benchmarks of a study, one after the other with the same engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from .. import digests
from ..clock import Clock
from ..data.problem import Problem, read_problems, with_repeats
from ..data.prompts import PromptRenderer
from ..data.sets import sampling_of
from ..data.sources import contaminated
from ..errors import UserError
from ..grading import open_grader
from ..hub import commit_of
from ..model.engine import Engine
from ..model.loading import context_length, load_model, load_tokenizer
from ..model.open_engine import open_engine, resolve_engine
from ..paths import DataFolder, EvaluationFolder, RunFolder, StudyFolder
from ..progress import Progress
from ..provenance import commit, hardware, versions
from ..records import EvaluationFacts, ModelEvaluation, write_record
from ..results import model_evaluation
from ..study.schema import Study
from ..train.start_model import check_start_model
from ..trainers.run import check_final_model
from .any_model import fetched
from .sampling import queries_of, sample, stopped
from .scores import grade


def evaluate(study: Study, models: Mapping[str, Path], data: DataFolder, results: StudyFolder) -> dict[str, str]:
    """Evaluate ``models`` (name → folder) and write a `ModelEvaluation` for each; returns name → key.

    Models that already have a record with the same weights and protocol are skipped, and no response is sampled twice.
    """
    problems = {b.name: with_repeats(read_problems(data.benchmark(b.name))) for b in study.evaluation.benchmarks}
    longest = max(sampling_of(study, b).max_tokens for b in study.evaluation.benchmarks)
    seen = {name: contaminated(data, name) for name in problems}
    host, made_at = EngineHost(study), commit()
    models = {name: model if model.exists() else _of_hub(study, model) for name, model in models.items()}
    clock, started = Clock(), time.perf_counter()
    keys = {}
    with ExitStack() as stack:
        protocols: set[str] = {
            study.extraction,
            *(b.extraction or study.extraction for b in study.evaluation.benchmarks),
        }
        tests = any(problem.options.tests for listed in problems.values() for problem in listed)
        graders = {p: stack.enter_context(open_grader(study.grader, p, tests)) for p in sorted(protocols)}
        for name, model in Progress(models.items(), "models evaluated", len(models)):
            with clock("load"):
                digest = _digest(name, model)
                tokenizer = load_tokenizer(str(model))
                renderer = PromptRenderer(tokenizer, study.prompt, context_length(str(model)) - longest)
                under = protocol(study, renderer, data, digest, graders[study.extraction].name)
            folder, key = results.evaluation(name), digests.of_json(under)
            keys[name] = key
            if (there := _evaluation(folder)) is not None and there.key == key and folder.samples.exists():
                _update_contaminated(there, folder, problems, seen)
                continue
            queries = queries_of(study, problems, renderer)
            before = dict(clock.seconds)
            with clock("engine"):
                responses = sample(queries, partial(host.engine, model), folder, response_key(under))
            with clock("grade"):
                texts = tokenizer.batch_decode([r.ids for r in responses], skip_special_tokens=True)
                responses, texts = stopped(responses, texts, study.evaluation.stop)
                records = grade(study, queries, responses, texts, graders, folder, seen)
            seconds = {phase: spent - before.get(phase, 0.0) for phase, spent in clock.seconds.items()}
            facts = EvaluationFacts(seconds=seconds, hardware=hardware(), versions=versions(), commit=made_at)
            evaluation = ModelEvaluation(model=name, key=key, protocol=under, facts=facts, records=records)
            write_record(folder.record, evaluation)
            for path in folder.all_responses():
                path.unlink()
    spent = {**clock.seconds, "total": time.perf_counter() - started}
    print(", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in spent.items()), file=sys.stderr)
    return keys


def _digest(name: str, model: Path) -> str:
    """The digest of a model. UserError if its files are missing or differ from the digest in its record."""
    run = RunFolder(model.parent)
    if model == run.model and not (model / "config.json").exists():
        raise UserError(f"{model}: has no model; train it first ({name}).")
    return check_final_model(run) if model == run.model else check_start_model(model)


def _of_hub(study: Study, model: Path) -> Path:
    """The local copy of the study's initial model on the hub; any other path unchanged, for the error message."""
    if str(model) != study.model.start:
        return model
    return fetched(study.model.start, commit_of(study.model.start, study.model.revision))


def _evaluation(folder: EvaluationFolder) -> ModelEvaluation | None:
    """The evaluation in a folder; None if there is none or it cannot be read."""
    if not folder.record.exists():
        return None
    try:
        return model_evaluation(folder)
    except UserError as error:
        print(f"{error} The model is evaluated again.", file=sys.stderr)
        return None


def _update_contaminated(
    there: ModelEvaluation,
    folder: EvaluationFolder,
    problems: Mapping[str, Collection[Problem]],
    seen: Mapping[str, Collection[str]],
) -> None:
    """Update which problems are among the training prompts, if that has changed; no response depends on it."""
    records = []
    for record in there.records:
        ids = [problem.id for problem in problems[record.benchmark]]
        positions = [i for i, identity in enumerate(ids) if identity in seen[record.benchmark]]
        records.append(record.model_copy(update={"contaminated": positions}))
    if records != there.records:
        write_record(folder.record, there.model_copy(update={"records": records}))


class EngineHost:
    """An engine that serves one model after the other; weights are loaded only when something is sampled."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._current: tuple[Path, Engine] | None = None

    def engine(self, folder: Path) -> Engine:
        """The engine with the weights in ``folder``."""
        if self._current is None or self._current[0] != folder:
            self._current = None  # frees the memory of an engine that cannot load other weights
            self._current = folder, open_engine(engine_of(self.study), str(folder), *load_model(str(folder)))
        return self._current[1]


# ---- the protocol: all settings that a score depends on; only scores with the same protocol are compared -------------


def protocol(study: Study, renderer: PromptRenderer, data: DataFolder, model: str, grader: str) -> dict[str, Any]:
    """All settings that a score depends on; ``model`` is the digest of the model, ``grader`` the name of the grader."""
    return {
        "model": model,
        "prompt": renderer.digest,
        "grader": grader,
        "engine": resolve_engine(engine_of(study)),
        "seed": study.evaluation.seed,
        **({"greedy": True} if study.evaluation.greedy else {}),
        **({"stop": study.evaluation.stop} if study.evaluation.stop else {}),
        "benchmarks": {
            b.name: {
                "sampling": sampling_of(study, b).model_dump(),
                "problems": digests.of_file(data.benchmark(b.name)),
                "extraction": b.extraction or study.extraction,
            }
            for b in study.evaluation.benchmarks
        },
    }


def engine_of(study: Study) -> Literal["auto", "vllm", "transformers"]:
    """The engine of evaluation, or of training if the process that trains a run evaluates it."""
    return study.training.engine if study.evaluation.after_training else study.evaluation.engine


def response_key(protocol: dict[str, Any]) -> str:
    """The digest of the parts of a protocol that sampled responses depend on: all but grader, extraction and stop."""
    benchmarks = {
        name: {k: v for k, v in settings.items() if k != "extraction"}
        for name, settings in protocol["benchmarks"].items()
    }
    sampled = {key: value for key, value in protocol.items() if key != "stop"}
    return digests.of_json({**sampled, "grader": None, "benchmarks": benchmarks})
