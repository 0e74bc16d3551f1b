"""Estimates the cost of a study: jobs, device-hours, tokens, memory, disk, and wall time on a number of devices."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..analysis.comparisons import comparisons_asked
from ..engines.trl_settings import is_sharded
from ..errors import UserError
from ..results.layout import StudyFolder
from ..study.fingerprint import Fingerprints
from ..study.schema import Study
from .devices import Constants, Device
from .jobs import SUBMITTED, Job, Jobs
from .loads import Memory, memory, shape_of
from .work import SEQUENCES, Planner, Work

# Numbers of devices per run that are tried, in this order.
SHARES = (1, 2, 4, 8, 16, 32, 64)
USABLE = 0.9  # share of a device's memory; the rest is fragmentation, buffers and libraries
LEAST_SEQUENCES = 32  # that must fit into the engine's cache at once; with fewer, sampling is too slow
CHECKPOINTS = 2  # kept of each run until it has ended
TEXT_BYTES = 8  # on disk per sampled token, as text and with its grade
STATE = 3  # numbers per parameter in a checkpoint: weights, and AdamW's two moments


def jobs_of(study: Study) -> Jobs:
    """All jobs of a study whose problems and models need not be there."""
    return Jobs(study, StudyFolder(Path(study.name)), Fingerprints(study))


def run_memory(planner: Planner) -> Memory:
    """Memory of a run on each of its devices."""
    training, expected = planner.study.training, planner.expected
    responses = expected.draws * training.prompts_per_step * training.group / planner.devices
    return memory(
        planner.shape,
        width=planner.width,
        compute=planner.compute,
        devices=planner.devices,
        sharded=is_sharded(training),
        # A response that is longer than a micro-batch is one of its own.
        micro=max(training.micro_batch_tokens, expected.prompt_tokens + training.max_tokens),
        sequences=min(planner.sequences, SEQUENCES[training.engine], responses),
        context=expected.prompt_tokens + min(expected.response_tokens, training.max_tokens),
        checkpointing=training.activation_checkpointing,
    )


def engine_for(planner: Planner, room: float) -> Planner:
    """``planner`` with as many sequences at once as fit into ``room`` bytes of the engine's cache."""
    cache = run_memory(planner).engine_cache
    return replace(planner, sequences=max(1, int(planner.sequences * min(1.0, room / cache if cache else 1.0))))


def planner_of(study: Study, constants: Constants, device: Device, per_run: int | None = None) -> Planner:
    """A planner with ``per_run`` devices, or the fewest on which a run fits (the most tried if it fits on none).

    The engine's cache gets the memory that is left, which must be enough for `LEAST_SEQUENCES`. UserError for several
    devices per run of the trainer that has one process.
    """
    if study.training.trainer == "policygrain":
        if (per_run or 1) > 1:
            raise UserError("--per-run: training.trainer policygrain has one device per run; trl and verl several.")
        per_run = 1
    expected = constants.workloads.get(study.model.start, constants.workloads["default"])
    shape = shape_of(study.model, constants.shapes)
    for devices in SHARES if per_run is None else (per_run,):
        planner = Planner(study, shape, expected, devices)
        held = run_memory(planner)
        planner = engine_for(planner, USABLE * device.memory - (held.total - held.engine_cache))
        if fits(planner, device):
            break
    return planner


def fits(planner: Planner, device: Device) -> bool:
    """Whether a run fits on its devices, with room for at least `LEAST_SEQUENCES`."""
    return run_memory(planner).total <= USABLE * device.memory and planner.sequences >= LEAST_SEQUENCES


def works(planner: Planner, jobs: Jobs, device: Device) -> list[tuple[Job, Work]]:
    """The work of each job that computes on a device."""
    study, arms = planner.study, jobs.fingerprints.matrix.arms
    trains = {name: planner.run(arm) for name, arm in arms.items()}
    if study.evaluation.after_training:  # by the process that trains, on its devices
        for name in jobs.fingerprints.matrix.evaluated_arms:
            trains[name] += planner.evaluation(study.training.engine)
    room = USABLE * device.memory - planner.shape.parameters * planner.compute
    alone = engine_for(replace(planner, devices=1, sequences=max(SEQUENCES.values())), room)
    evaluates = alone.evaluation()

    def work(job: Job) -> Work:
        match job.rule:
            case "train":
                return sum((trains[run.arm] for run in job.runs), Work())
            case "evaluate":
                return evaluates * (len(job.runs) + len(job.starts))
            case "estimators":
                assert study.estimators is not None
                return planner.estimators(study.estimators) * len(job.starts)
            case "rounds":
                assert study.rounds is not None
                return planner.rounds(study.rounds) * len(job.starts)
            case _:
                return planner.start_model() * len(job.starts)

    return [(job, work(job)) for job in jobs.submitted]


def seconds(work: Work, device: Device) -> float:
    """Seconds that ``device`` takes for ``work``."""
    return sum(device.phases[phase].seconds(load) for phase, load in work.loads.items())


def makespan(durations: Iterable[float], slots: int) -> float:
    """Time to run jobs in ``slots`` at a time, longest first (Graham's rule: at most 4/3 of the optimum)."""
    busy = [0.0] * max(1, slots)
    for duration in sorted(durations, reverse=True):
        heapq.heapreplace(busy, busy[0] + duration)
    return max(busy)


def instrument_memory(planner: Planner) -> float:
    """Bytes of `estimators` or `rounds` on one device; 0 if neither is measured.

    Weights, two moments, activations, the engine, and gradients: of `estimators`, one, the true one, and for each
    estimator a sum over batches; of `rounds`, one, and a copy of the weights and moments that every method begins with.
    """
    study, held = planner.study, run_memory(planner)
    copies = max(2 + len(study.estimators.methods) if study.estimators else 0, 4 if study.rounds else 0)
    activations = held.activations * planner.width / planner.compute
    rest = activations + held.output_layer + held.engine_weights + held.engine_cache
    return (STATE + copies) * planner.shape.parameters * planner.width + rest if copies else 0.0


def estimate(
    study: Study, constants: Constants, name: str, gpus: int | None = None, per_run: int | None = None
) -> dict[str, Any]:
    """The estimate as plain data, in bytes, hours and tokens.

    ``name`` is that of the device, ``gpus`` the number of devices available, ``per_run`` the number per run (None: the
    fewest on which a run fits).
    """
    device, jobs = constants.device(name), jobs_of(study)
    planner = planner_of(study, constants, device, per_run)
    held, there = run_memory(planner), max(gpus or planner.devices, planner.devices)
    by_rule: dict[str, list[Work]] = defaultdict(list)
    for job, work in works(planner, jobs, device):
        by_rule[job.rule].append(work)
    rules: list[dict[str, Any]] = []
    wall = 0.0
    for rule in (rule for rule in SUBMITTED if rule in by_rule):
        devices = planner.devices if rule in ("train", "estimators", "rounds") else 1
        spent = [device.phases["start"].call + seconds(work, device) for work in by_rule[rule]]
        # Stages one after the other, as in the workflow; some could overlap.
        wall += makespan(spent, there // devices)
        rules.append(
            {
                "rule": rule,
                "jobs": len(spent),
                "devices": devices,
                "device_hours": sum(spent) * devices / 3600,
                "longest_hours": max(spent) / 3600,
                "tokens_sampled": sum(work.generated for work in by_rule[rule]),
                "tokens_trained": sum(work.trained for work in by_rule[rule]),
            }
        )
    total: dict[str, Any] = {key: sum(rule[key] for rule in rules) for key in ("device_hours", "tokens_sampled")}
    runs, parameters = len(jobs.fingerprints.matrix.runs), planner.shape.parameters
    evaluated = sum(rule["tokens_sampled"] for rule in rules if rule["rule"] == "evaluate")
    if study.evaluation.after_training:
        evaluated += planner.evaluation(study.training.engine).generated * len(jobs.fingerprints.matrix.evaluated)
    checkpoints = min(runs, there // planner.devices) * CHECKPOINTS * STATE * parameters * planner.width
    return {
        "study": study.name,
        "model": study.model.start,
        "parameters": parameters,
        "runs": runs,
        "comparisons": comparisons_asked(study),
        "device": {"name": name, **device.model_dump(exclude={"phases"})},
        "expected": planner.expected.model_dump(),
        "rules": rules,
        "total": {
            **total,
            "jobs": len(jobs.all) + 1,  # and `all`
            "tokens_trained": sum(rule["tokens_trained"] for rule in rules if rule["rule"] == "train"),
        },
        "gpus": there,
        "wall_hours": wall / 3600,
        "devices_per_run": planner.devices,
        "memory": {**asdict(held), "total": held.total},
        "checkpointing": study.training.activation_checkpointing,
        "fits": fits(planner, device),
        "sequences": planner.sequences,
        "instrument_memory": instrument_memory(planner),
        "disk": checkpoints + runs * parameters * planner.compute + evaluated * TEXT_BYTES,
    }
