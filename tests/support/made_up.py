"""Records of a study that nobody trained, whose numbers are known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from policygrain.data.sets import sampling_of
from policygrain.evaluate.scores import write_samples
from policygrain.figures.catalogue import draw
from policygrain.paths import START, RunFolder, StudyFolder
from policygrain.records import (
    BenchmarkRecord,
    Environment,
    EvaluatedSample,
    EvaluationFacts,
    ModelEvaluation,
    RunConfig,
    RunInputs,
    RunSummary,
    write_record,
)
from policygrain.results import StudyResults
from policygrain.study import Study, study_text
from policygrain.study.dependencies import run_settings, start_seed, start_seeds
from policygrain.study.runs import Run, run_matrix

from .files import write_lines

STEPS, PROBLEMS = 3, 12
SHARED = {"gradient_norm": 1.0, "entropy_old": 0.5, "response_length_mean": 9.0, "effective_sample_share": 0.9}


def make_up(study: Study, folder: Path, right: dict[str, int]) -> Path:
    """Records of all runs of a study: ``right`` of 12 problems for the arms named, 6 for the others."""
    results, matrix = StudyFolder(folder), run_matrix(study)
    for run in matrix.runs:
        make_up_run(study, results, run)
    models = [f"{START}/seed{s}" for s in start_seeds(study)] + [r.name for r in matrix.evaluated]
    for model in models:
        make_up_evaluation(study, results, model, right.get(model.split("/")[0], 6))
    results.study.write_text(study_text(study, results.study))
    return folder


def make_up_run(
    study: Study, results: StudyFolder, run: Run, rows: Sequence[dict[str, Any]] | None = None
) -> RunFolder:
    """The records of one run that has ended; ``rows`` are its metrics, the last of them of the final validation."""
    arm, there = run_matrix(study).arms[run.arm], results.run(run.arm, run.seed)
    updates = arm.training.updates_of_batch
    rows = rows or made_up_rows(updates, run.seed)
    steps = len(rows) - 1
    start = f"s{start_seed(study, run.seed)}" if study.model.start == "tiny" else "s"
    write_lines(there.metrics, rows)
    write_lines(there.timings, [{"step": s, "total_seconds": 2.0 * (s + 1)} for s in range(steps)])
    config = RunConfig(
        key=f"key-{run.arm}-{run.seed}",
        arm=run.arm,
        seed=run.seed,
        settings=run_settings(study, arm, run.seed),
        method={"ratio": "token"},
        training={"steps": steps},
        inputs=RunInputs(start_model=start, train="d", validation="v"),
    )
    final = {"validation_accuracy": 0.5, "validation_length": 9.0, "steps": steps, "updates": steps * updates}
    final |= {"tokens": 300, "samples": 96, "seconds": 6.0}
    made_with = Environment(versions={"torch": "2"}, commit="c0ffee", hardware="a computer")
    write_record(there.config, config)
    ended = config.model_dump() | {"final": final, "model_digest": "m", "environment": made_with}
    write_record(there.summary, RunSummary.model_validate(ended))
    return there


def made_up_rows(updates: int, seed: int) -> list[dict[str, Any]]:
    """`STEPS` steps: accuracy rises by 0.1 per step.

    Validation, every other step, rises from 0 in proportion to the step; seed s ends with 0.5 + 0.1s, seed 5 as seed 0.
    """
    final = 0.5 + 0.1 * (seed % 5)
    rows: list[dict[str, Any]] = [
        {"step": s, "sampled_accuracy": 0.1 * s, "clip_fraction_low": 0.01, "clip_fraction_high": 0.02, **SHARED}
        | {"total_updates": updates * (s + 1), "total_tokens": 100 * (s + 1), "total_samples": 32 * (s + 1)}
        | ({"validation_accuracy": final * s / STEPS} if s % 2 == 0 else {})
        for s in range(STEPS)
    ]
    return [*rows, {"step": STEPS, "validation_accuracy": final, "total_tokens": 300, "total_samples": 96}]


def make_up_evaluation(study: Study, results: StudyFolder, model: str, count: int) -> None:
    """The evaluation of one model that solves the first ``count`` problems of each benchmark, greedily one more."""
    records, rows, settings = [], [], {}
    share, greedy = count / PROBLEMS, [float(problem <= count) for problem in range(PROBLEMS)]
    scores = {"accuracy": share, "pass_at": {1: share}, "majority": share, "contaminated": [], "tokens": 100}
    scores |= {"per_problem": [float(problem < count) for problem in range(PROBLEMS)], "truncated": 0.0}
    scores |= {"greedy": greedy if study.evaluation.greedy else None}
    for benchmark in study.evaluation.benchmarks:
        name, sampling = benchmark.name, sampling_of(study, benchmark)
        settings[name] = {"sampling": sampling.model_dump(), "problems": "d"}
        outcomes = {"correct": count * sampling.n, "incorrect": (PROBLEMS - count) * sampling.n}
        outcomes = {outcome: number for outcome, number in outcomes.items() if number}
        of_benchmark = {"benchmark": name, "n": sampling.n, "problems": PROBLEMS, "outcomes": outcomes}
        records.append(BenchmarkRecord.model_validate(of_benchmark | scores))
        for problem in range(PROBLEMS):
            answer, outcome = (str(problem), "correct") if problem < count else ("-1", "incorrect")
            asked, said = (f"{name}: what is {problem}?", str(problem)), (f"{model} says {answer}", answer, outcome)
            rows += [
                EvaluatedSample(name, f"{name}-{problem}", i, False, *asked, *said, 9, False) for i in range(sampling.n)
            ]
    protocol = {"model": "m", "prompt": "p", "grader": "numeric-1", "engine": "vllm", "seed": 7, "benchmarks": settings}
    facts = EvaluationFacts(seconds={"engine": 3.0}, hardware="a computer", versions={"vllm": "1"})
    folder, key = results.evaluation(model), f"evaluation-{model}"
    write_record(folder.record, ModelEvaluation(model=model, key=key, protocol=protocol, facts=facts, records=records))
    write_samples(folder.samples, rows)


def table(name: str, results: StudyResults) -> tuple[pd.DataFrame, str]:
    """A table as numbers and as Markdown."""
    draw(name, results)
    return pd.read_csv(results.folder.table(name, ".csv")), results.folder.table(name, ".md").read_text()
