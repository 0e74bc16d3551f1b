"""Estimates the cost of a study: jobs, device-hours, tokens, memory, disk, and wall time on a number of devices."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..analysis.planned import comparisons_asked
from ..study.design import Estimators
from ..study.fingerprint import measured_starts, start_processes, start_seeds
from ..study.runs import run_matrix
from ..study.schema import Study
from . import loads as cost
from .constants import Constants, Device
from .shapes import shape_of
from .workload import SEQUENCES, Planner, Work, evaluated_models, jobs

# Numbers of devices per run that are tried, in this order.
SHARES = (1, 2, 4, 8, 16, 32, 64)
USABLE = 0.9  # share of a device's memory; the rest is fragmentation, buffers and libraries
LEAST_SEQUENCES = 32  # that must fit into the engine's cache at once; with fewer, sampling is too slow
CHECKPOINTS = 2  # kept of each run until it has ended
TEXT_BYTES = 8  # on disk per sampled token, as text and with its grade
MOMENTS = 2  # AdamW's, each with a number per parameter


@dataclass(frozen=True)
class Rule:
    """Jobs of one rule of the workflow."""

    rule: str
    jobs: int
    devices: int  # per job
    seconds: tuple[float, ...]  # of each job
    work: Work

    @property
    def device_hours(self) -> float:
        """Total over its jobs."""
        return sum(self.seconds) * self.devices / 3600


def seconds(work: Work, device: Device) -> float:
    """Seconds that ``device`` takes for ``work``."""
    return sum(device.speed(phase).seconds(load) for phase, load in work.loads.items())


def memory(planner: Planner, checkpointing: bool | None = None) -> cost.Memory:
    """Memory of a run on each of its devices; ``checkpointing`` of activations, None: as in the study."""
    settings, expected = planner.study.training, planner.expected
    responses = expected.draws * settings.prompts_per_step * settings.group / planner.devices
    return cost.memory(
        planner.shape,
        planner.width,
        planner.compute,
        planner.devices,
        settings.fsdp is not None,
        # A response that is longer than a micro-batch is one of its own.
        max(settings.micro_batch_tokens, expected.prompt_tokens + settings.max_tokens),
        min(planner.sequences, SEQUENCES[settings.engine], responses),
        expected.prompt_tokens + min(expected.response_tokens, settings.max_tokens),
        settings.activation_checkpointing if checkpointing is None else checkpointing,
    )


def instrument_memory(planner: Planner) -> float:
    """Bytes of `estimators` or `rounds` on one device; 0 if neither is measured.

    Weights, two moments, activations, the engine, and gradients: of `estimators`, one, the true one, and for each
    estimator a sum over batches; of `rounds`, one, and a copy of the weights and moments that every method begins with.
    """
    study = planner.study
    parameters = planner.shape.parameters * planner.width
    sums = 2 + len(study.estimators.methods) if study.estimators else 0
    copies = 1 + 3 if study.rounds else 0
    if not max(sums, copies):
        return 0.0
    held, per_number = memory(planner), planner.width / planner.compute
    return (3.0 + max(sums, copies)) * parameters + per_number * held.activations + held.output_layer + held.engine


def engine_for(planner: Planner, room: float) -> Planner:
    """``planner`` with as many sequences at once as fit into ``room`` bytes of the engine's cache."""
    cache = memory(planner).engine_cache
    return replace(planner, sequences=max(1, int(planner.sequences * min(1.0, room / cache if cache else 1.0))))


def planner_of(study: Study, constants: Constants, device: Device, each: int | None = None) -> Planner:
    """A planner with ``each`` devices per run, or the fewest on which a run fits (the most tried if it fits on none).

    The engine's cache gets the memory that is left, which must be enough for `LEAST_SEQUENCES`.
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
    """Whether a run fits on its devices, with room for at least `LEAST_SEQUENCES`."""
    return memory(planner).total <= USABLE * device.memory and planner.sequences >= LEAST_SEQUENCES


def rules(planner: Planner, device: Device) -> list[Rule]:
    """The rules whose jobs compute on a device, in the order in which they run."""
    study, matrix, counts = planner.study, run_matrix(planner.study), jobs(planner.study)
    start = device.speed("start").call
    found: list[Rule] = []

    def rule(name: str, devices: int, each: Iterable[list[Work]]) -> None:
        parts = list(each)
        spent = tuple(start + sum(seconds(work, device) for work in part) for part in parts)
        total = sum((work for part in parts for work in part), Work())
        if parts:
            found.append(Rule(name, len(parts), devices, spent, total))

    made = start_processes(study, start_seeds(study)) if counts["start_model"] else []
    rule("start_model", 1, [[planner.start_model() for _ in own] for own in made])
    runs = {name: planner.run(arm) for name, arm in matrix.arms.items()}
    processes = matrix.processes(study.seeds_per_process)
    own = {run: [runs[run.arm]] for run in matrix.runs}
    if study.evaluation.after_training:  # by the process that trains, on its devices
        for run in matrix.evaluated:
            own[run].append(planner.evaluation(study.training.engine))
    rule("train", planner.devices, [[work for run in process for work in own[run]] for process in processes])
    for name, section in (("estimators", study.estimators), ("rounds", study.rounds)):
        if section is not None:
            work = planner.estimators(section) if isinstance(section, Estimators) else planner.rounds(section)
            starts = start_processes(study, measured_starts(study, section))
            rule(name, planner.devices, [[work for _ in own] for own in starts])
    room = USABLE * device.memory - planner.shape.parameters * planner.compute
    alone = engine_for(replace(planner, devices=1, sequences=max(SEQUENCES.values())), room)
    one, models = alone.evaluation(), evaluated_models(study)
    if (parts := study.evaluation.parts) > 1:  # these jobs sample; what is left for `evaluate` is grading
        rule("evaluate_part", 1, [[one * (1 / parts)] * n for n in models for _ in range(parts)])
        one = Work({"load": one.loads["load"], "judge": one.loads["judge"]})
    rule("evaluate", 1, [[one] * n for n in models])
    return found


def makespan(durations: Iterable[float], slots: int) -> float:
    """Time to run jobs in ``slots`` at a time, longest first (Graham's rule: at most 4/3 of the optimum)."""
    busy = [0.0] * max(1, slots)
    for duration in sorted(durations, reverse=True):
        heapq.heapreplace(busy, busy[0] + duration)
    return max(busy)


def disk(planner: Planner, work: Work, at_once: int) -> dict[str, float]:
    """Bytes of the results on disk, including the checkpoints of the runs that are trained at once."""
    runs = len(run_matrix(planner.study).runs)
    weights = float(planner.shape.parameters * planner.width)
    return {
        "checkpoints": min(runs, at_once) * CHECKPOINTS * weights * (1 + MOMENTS),
        "models": runs * float(planner.shape.parameters * planner.compute),
        "samples": work.generated * TEXT_BYTES,
    }


def estimate(
    study: Study, constants: Constants, name: str, gpus: int | None = None, each: int | None = None
) -> dict[str, Any]:
    """The estimate as plain data, in bytes, hours and tokens.

    ``name`` is that of the device, ``gpus`` the number of devices available, ``each`` the number per run (None: the
    fewest on which a run fits).
    """
    device = constants.device(name)
    planner = planner_of(study, constants, device, each)
    used, counts, held = rules(planner, device), jobs(study), memory(planner)
    computing = {rule.rule for rule in used}
    evaluated = sum((rule.work for rule in used if rule.rule.startswith("evaluate")), Work())
    if study.evaluation.after_training:
        evaluated += planner.evaluation(study.training.engine) * len(run_matrix(study).evaluated)
    there = max(gpus or planner.devices, planner.devices)
    # Stages one after the other, as in the workflow; some could overlap.
    wall = sum(makespan(rule.seconds, there // rule.devices) for rule in used)
    return {
        "study": study.name,
        "model": study.model.start,
        "parameters": planner.shape.parameters,
        "runs": len(run_matrix(study).runs),
        "comparisons": comparisons_asked(study),
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
        "instrument_memory": instrument_memory(planner),
        "device_memory": device.memory,
        "disk": disk(planner, evaluated, there // planner.devices),
    }
