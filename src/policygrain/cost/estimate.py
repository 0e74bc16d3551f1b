"""A study's bill: jobs, device-hours, tokens, memory, disk, and how long it takes on so many devices."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..study.runs import run_matrix
from ..study.schema import Study
from . import loads as cost
from .constants import Constants, Device
from .shapes import shape_of
from .workload import SEQUENCES, Planner, Work, jobs

# Devices that may share a run, fewest first.
SHARES = (1, 2, 4, 8, 16, 32, 64)
USABLE = 0.9  # share of a device's memory; the rest is fragments, buffers, other people's libraries
LEAST_SEQUENCES = 32  # that there must be room for at once; with fewer, sampling would take for ever
CHECKPOINTS = 2  # kept of each run
TEXT_BYTES = 8  # that a sampled token leaves on disk, as text and with its verdict
MOMENTS = 2  # AdamW's, a number a parameter each


@dataclass(frozen=True)
class Rule:
    """One rule of the workflow that computes."""

    rule: str
    jobs: int
    devices: int  # that a job takes
    seconds: tuple[float, ...]  # of each job
    work: Work

    @property
    def device_hours(self) -> float:
        """Of all its jobs."""
        return sum(self.seconds) * self.devices / 3600


def seconds(work: Work, device: Device) -> float:
    """How long ``device`` takes for it."""
    return sum(device.speed(phase).seconds(load) for phase, load in work.loads.items())


def memory(planner: Planner, checkpointing: bool | None = None) -> cost.Memory:
    """A run's on each of its devices; with activations kept or computed again, null: as the study says."""
    settings, expected = planner.study.training, planner.expected
    asked = expected.draws * settings.prompts_per_step * settings.group / planner.devices
    return cost.memory(
        planner.shape,
        planner.width,
        planner.compute,
        planner.devices,
        settings.fsdp is not None,
        # A response that is longer than a micro-batch is one of its own.
        max(settings.micro_batch_tokens, expected.prompt_tokens + settings.max_tokens),
        min(planner.sequences, SEQUENCES[settings.engine], asked),
        expected.prompt_tokens + min(expected.response_tokens, settings.max_tokens),
        settings.activation_checkpointing if checkpointing is None else checkpointing,
    )


def probe_memory(planner: Planner) -> float:
    """Bytes that the probe holds on its one device: weights, a gradient and a sum of gradients, two moments, a pass."""
    if planner.study.probe is None:
        return 0.0
    held, per_number = memory(planner), planner.width / planner.compute
    return 5.0 * planner.shape.parameters * planner.width + per_number * held.activations + held.output_layer


def engine_for(planner: Planner, room: float) -> Planner:
    """With as many sequences at once as the engine's cache has ``room`` for, in bytes."""
    cache = memory(planner).engine_cache
    return replace(planner, sequences=max(1, int(planner.sequences * min(1.0, room / cache if cache else 1.0))))


def planner_of(study: Study, constants: Constants, device: Device, each: int | None = None) -> Planner:
    """The fewest devices a run, or ``each``, on which it fits; where it fits on none, the most that are tried.

    The engine gets what memory is left, and it has to be enough for some sequences.
    """
    shape, expected = shape_of(study.model, constants.shapes), constants.workload(study.model.start)
    for devices in SHARES if each is None else (each,):
        planner = Planner(study, shape, expected, devices)
        held = memory(planner)
        planner = engine_for(planner, USABLE * device.memory - (held.total - held.engine_cache))
        if fits(planner, device):
            break
    return planner


def fits(planner: Planner, device: Device) -> bool:
    """Whether a run fits on its devices, with room for some sequences."""
    return memory(planner).total <= USABLE * device.memory and planner.sequences >= LEAST_SEQUENCES


def rules(planner: Planner, device: Device) -> list[Rule]:
    """Those that compute, in the order in which they run."""
    study, matrix, counts = planner.study, run_matrix(planner.study), jobs(planner.study)
    start = device.speed("start").call
    found: list[Rule] = []

    def rule(name: str, devices: int, each: Iterable[list[Work]]) -> None:
        parts = list(each)
        spent = tuple(start + sum(seconds(work, device) for work in part) for part in parts)
        total = sum((work for part in parts for work in part), Work())
        if parts:
            found.append(Rule(name, len(parts), devices, spent, total))

    rule("start_model", 1, [[planner.start_model()] for _ in range(counts["start_model"])])
    runs = {name: planner.run(arm) for name, arm in matrix.arms.items()}
    processes = matrix.processes(study.seeds_per_process)
    rule("train", planner.devices, [[runs[run.arm] for run in process] for process in processes])
    rule("probe", planner.devices, [[planner.probe(study.probe)] for _ in study.seeds if study.probe])
    starts = len(study.seeds) if study.model.warm_start_per_seed else 1
    room = USABLE * device.memory - planner.shape.parameters * planner.compute
    alone = engine_for(replace(planner, devices=1, sequences=max(SEQUENCES.values())), room)
    one, batch = alone.evaluation(), study.evaluation.runs_per_engine
    shards = [min(batch, len(matrix.evaluated) - i) for i in range(0, len(matrix.evaluated), batch)]
    models = [n + (starts if i == 0 else 0) for i, n in enumerate(shards)]
    if (parts := study.evaluation.parts) > 1:  # drawn by jobs of their own; what is left is to judge
        rule("evaluate_part", 1, [[one * (1 / parts)] * n for n in models for _ in range(parts)])
        one = Work({"load": one.loads["load"], "judge": one.loads["judge"]})
    rule("evaluate", 1, [[one] * n for n in models])
    return found


def makespan(durations: Iterable[float], places: int) -> float:
    """How long jobs take on so many places, the longest first (Graham's rule: at most 4/3 of the best)."""
    busy = [0.0] * max(1, places)
    for duration in sorted(durations, reverse=True):
        heapq.heapreplace(busy, busy[0] + duration)
    return max(busy)


def disk(planner: Planner, work: Work) -> dict[str, float]:
    """Bytes that the results take, checkpoints of every run included."""
    runs = len(run_matrix(planner.study).runs)
    weights = float(planner.shape.parameters * planner.width)
    return {
        "checkpoints": runs * CHECKPOINTS * weights * (1 + MOMENTS),
        "models": runs * weights,
        "samples": work.generated * TEXT_BYTES,
    }


def estimate(
    study: Study, constants: Constants, name: str, gpus: int | None = None, each: int | None = None
) -> dict[str, Any]:
    """The bill as plain data: bytes, seconds, tokens. ``gpus`` there are, ``each`` are given to a run."""
    device = constants.device(name)
    planner = planner_of(study, constants, device, each)
    used, counts, held = rules(planner, device), jobs(study), memory(planner)
    computing = {rule.rule for rule in used}
    evaluated = sum((rule.work for rule in used if rule.rule.startswith("evaluate")), Work())
    there = max(gpus or planner.devices, planner.devices)
    # Stage after stage, which is the order of the workflow; some stages can overlap.
    wall = sum(makespan(rule.seconds, there // rule.devices) for rule in used)
    return {
        "study": study.name,
        "model": study.model.start,
        "parameters": planner.shape.parameters,
        "device": {"name": name, "title": device.title, "measured": device.measured, "source": device.source},
        "expected": planner.expected.model_dump(),
        "rules": [
            {
                "rule": rule.rule,
                "jobs": rule.jobs,
                "devices": rule.devices,
                "device_hours": rule.device_hours,
                "longest_hours": max(rule.seconds) / 3600,
                "tokens_sampled": rule.work.generated,
                "tokens_trained": rule.work.trained,
            }
            for rule in used
        ],
        "jobs_of_seconds": sum(count for rule, count in counts.items() if rule not in computing),
        "total": {
            "jobs": sum(counts.values()),
            "device_hours": sum(rule.device_hours for rule in used),
            "tokens_sampled": sum(rule.work.generated for rule in used),
            "tokens_trained": sum(rule.work.trained for rule in used if rule.rule == "train"),
        },
        "gpus": there,
        "wall_hours": wall / 3600,
        "devices_per_run": planner.devices,
        "memory": {**asdict(held), "total": held.total},
        "checkpointing": study.training.activation_checkpointing,
        "sharded": study.training.fsdp is not None,
        "activations": {
            "kept": memory(planner, checkpointing=False).activations,
            "computed_again": memory(planner, checkpointing=True).activations,
        },
        "fits": fits(planner, device),
        "sequences": planner.sequences,
        "probe_memory": probe_memory(planner),
        "device_memory": device.memory,
        "disk": disk(planner, evaluated),
    }
