"""Compares an estimate with the records of a finished study, and fits constants to such records."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..results.reader import StudyResults, run_metrics, run_timings, start_model
from ..results.schema import ModelEvaluation
from ..study.fingerprint import start_seeds
from ..study.runs import Run
from ..tasks.problem import read_problems
from .constants import Constants, Device, Phase, Workload
from .loads import Load
from .shapes import shape_of
from .workload import Planner

# Names of the phases in a run's timings. Validation counts as sampling.
TIMED = {"generate": "decode", "log_probs": "score", "update": "update", "reward": "judge"}


class Sample(NamedTuple):
    """A measured phase of a job: its estimated load and the seconds that it took."""

    rule: str
    phase: Phase
    predicted: Load  # with the expected numbers of tokens
    known: Load  # with the actual numbers of tokens
    seconds: float


def samples(results: StudyResults, planner: Planner) -> Iterator[Sample]:
    """Every phase of every training run, start model and evaluated model in ``results``."""
    for run in results.summaries:
        if results.run_folder(run).timings.exists():
            yield from _of_run(run, results, planner)
    for seed in start_seeds(results.study):
        folder = results.folder.start(seed)
        if folder.record.exists():
            load = planner.start_model().loads["update"]
            yield Sample("start_model", "update", load, load, start_model(folder).seconds)
    for evaluation in results.model_evaluations.values():
        yield from _of_evaluation(evaluation, planner)


def _of_run(run: Run, results: StudyResults, planner: Planner) -> Iterator[Sample]:
    arm, folder = results.matrix.arms[run.arm], results.run_folder(run)
    settings = arm.training(planner.study)
    rows = run_metrics(folder)[: settings.steps]
    spent: dict[str, float] = defaultdict(float)
    for row in run_timings(folder):
        for key, value in row.items():
            spent[key] += value if key.startswith("seconds/") else 0.0
    known = replace(
        planner,
        expected=planner.expected.model_copy(
            update={
                "response_tokens": rows[-1]["total_tokens"] / rows[-1]["total_samples"],
                "draws": rows[-1]["total_samples"] / settings.group / settings.prompts_per_step / settings.steps,
            }
        ),
    )
    before, after = (p.step(arm) * settings.steps for p in (planner, known))
    for name, phase in TIMED.items():
        phases: list[Phase] = [p for p in before.loads if p.startswith(phase)]
        yield Sample("train", phases[0], before.loads[phases[0]], after.loads[phases[0]], spent[f"seconds/{name}"])


def _of_evaluation(evaluation: ModelEvaluation, planner: Planner) -> Iterator[Sample]:
    tokens = sum(record.tokens for record in evaluation.records)
    responses = sum(record.problems * record.n for record in evaluation.records)
    expected = planner.expected.model_copy(update={"response_tokens": tokens / responses})
    before, after = planner.evaluation(), replace(planner, expected=expected).evaluation()
    spent = evaluation.facts.seconds
    for name, phase in {"load": "load", "engine": "decode", "grade": "judge"}.items():
        phases: list[Phase] = [p for p in before.loads if p.startswith(phase)]
        if name in spent:
            yield Sample("evaluate", phases[0], before.loads[phases[0]], after.loads[phases[0]], spent[name])


def against(results: StudyResults, constants: Constants, device: Device) -> list[dict[str, Any]]:
    """Rows of rule, phase, predicted and measured seconds and their ratio; a rule's own row has the phase `all`.

    The time to start an engine is in the records of the first model that it evaluates. The estimate of a model does not
    contain it, so for `evaluate` medians times the number of models are compared. UserError without records.
    """
    study = results.study
    planner = Planner(study, shape_of(study.model, constants.shapes), constants.workload(study.model.start))
    grouped: dict[tuple[str, Phase], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples(results, planner):
        predicted = device.speed(sample.phase).seconds(sample.predicted)
        grouped[sample.rule, sample.phase].append((predicted, sample.seconds))
    if not grouped:
        raise UserError(
            f"{results.folder.path}: no finished run to compare with is here; it has to be the results of {study.name}."
        )
    rows: list[dict[str, Any]] = []
    for (rule, phase), pairs in grouped.items():
        add_up = sum if rule != "evaluate" else lambda values: statistics.median(values) * len(values)
        predicted, measured = (float(add_up([pair[i] for pair in pairs])) for i in (0, 1))
        rows.append({"rule": rule, "phase": phase, "of": len(pairs), "predicted": predicted, "measured": measured})
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = [row for row in rows if row["rule"] == rule]
        total = {key: sum(row[key] for row in own) for key in ("predicted", "measured")}
        rows.append({"rule": rule, "phase": "all", "of": own[0]["of"], **total})
    for row in rows:
        row["ratio"] = row["predicted"] / row["measured"] if row["measured"] else None
    return rows


def fit(loads: Sequence[Load], seconds: Sequence[float]) -> dict[str, float]:
    """Fit `call` and `rate` in seconds = calls × call + flops / rate, with the least squared relative error.

    A coefficient that would be negative is left out, and the other one is fitted alone.
    """
    y = np.maximum(np.array(seconds, dtype=float), 1e-9)
    columns = np.array([[load.calls, load.flops] for load in loads], dtype=float) / y[:, None]
    best: tuple[float, tuple[float, float]] | None = None
    for use in ((0, 1), (0,), (1,)):
        part = columns[:, use]
        scale = np.abs(part).max(axis=0)
        if (scale == 0).any():
            continue
        found = np.linalg.lstsq(part / scale, np.ones(len(y)), rcond=None)[0] / scale
        full = [0.0, 0.0]
        for place, value in zip(use, found, strict=True):
            full[place] = float(value)
        error = float(np.square(columns @ full - 1).sum())
        if min(full) >= 0 and (best is None or error < best[0]):
            best = error, (full[0], full[1])
    call, per_flop = best[1] if best else (0.0, 0.0)
    return {"call": call, **({"rate": 1 / per_flop} if per_flop else {})}


def calibrate(results: StudyResults, constants: Constants, name: str) -> dict[str, Any]:
    """Constants of the device that made ``results``, in the form of `constants.yaml`, under ``name``.

    Phases are fitted by least squares (`fit`), grading and loading by medians; numbers of tokens are means. A phase
    without records keeps the values of the device ``name``, if it exists. UserError without records.
    """
    study = results.study
    expected = _texts(results, constants.workload(study.model.start))
    planner = Planner(study, shape_of(study.model, constants.shapes), expected)
    grouped: dict[Phase, list[Sample]] = defaultdict(list)
    for sample in samples(results, planner):
        if sample.rule != "start_model":  # its optimizer is another one, so it tests the constants instead
            grouped[sample.phase].append(sample)
    if not grouped:
        raise UserError(f"{results.folder.path}: no finished run of {study.name} is here to fit constants to.")
    known = constants.devices.get(name)
    phases: dict[str, Any] = {p: vars(known.speed(p)) for p in known.phases} if known else {}
    for phase, found in grouped.items():
        if phase in ("judge", "load"):
            phases[phase] = {"call": statistics.median(s.seconds / max(1.0, s.known.calls) for s in found)}
            continue
        typical = statistics.median(s.seconds for s in found)
        if phase == "decode":
            opening = [s.seconds - typical for s in found if s.seconds > 1.5 * typical]
            phases["start"] = {"call": statistics.median(opening) if opening else 0.0}
        # The first model that an engine evaluates includes the time to start it.
        usual = [s for s in found if phase != "decode" or s.seconds <= 1.5 * typical]
        phases[phase] = fit([s.known for s in usual], [s.seconds for s in usual])
    hardware = {summary.environment.hardware for summary in results.summaries.values()}
    source = f"Measured: the records of {study.name}, {len(grouped['score'])} runs, by `policygrain plan --calibrate`."
    device = {
        "title": " and ".join(sorted(hardware)),
        "measured": True,
        "memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "source": source,
        "phases": {p: {k: float(f"{v:.3g}") for k, v in speed.items() if v} for p, speed in phases.items()},
    }
    return {"devices": {name: device}, "workloads": {study.model.start: expected.model_dump()}}


def _texts(results: StudyResults, before: Workload) -> Workload:
    """Mean lengths and draws of a study's training runs."""
    study = results.study
    tokens = sampled = 0.0
    draws: list[float] = []
    for run, folder in results.trained.items():
        arm = results.matrix.arms[run.arm]
        settings = arm.training(study)
        rows = run_metrics(folder)[: settings.steps]
        if not rows:
            continue
        tokens, sampled = tokens + rows[-1]["total_tokens"], sampled + rows[-1]["total_samples"]
        if arm.method(study).sampler.dynamic:
            draws.append(rows[-1]["total_samples"] / settings.group / settings.prompts_per_step / len(rows))
    if not sampled:
        return before
    return Workload(
        prompt_tokens=_prompt_tokens(results) or before.prompt_tokens,
        response_tokens=float(f"{tokens / sampled:.3g}"),
        draws=float(f"{statistics.mean(draws):.3g}") if draws else before.draws,
        source=f"Measured: means over the training runs of {study.name}.",
    )


def _prompt_tokens(results: StudyResults) -> float | None:
    """Mean length of training prompts, by the tokenizer of a run's model; None where there is none."""
    from tokenizers import Tokenizer

    paths = [folder.model / "tokenizer.json" for folder in results.trained.values()]
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        return None
    tokenizer = Tokenizer.from_file(str(found))
    problems = [problem.problem for problem in read_problems(results.folder.data.train, 2000)]
    texts = [results.study.prompt.template.replace("{problem}", problem) for problem in problems]
    return float(f"{statistics.mean(len(e.ids) for e in tokenizer.encode_batch(texts)):.3g}")
