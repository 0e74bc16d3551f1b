"""Estimates of a study's cost: tokens and device-hours of each job, and the memory of a run (`policygrain plan`).

Device-hours are FLOPs divided by the device's rate for sampling or training, plus the start-up time of each job. A
token that is sampled or scored costs 2N FLOPs, one that is trained on 6N (Kaplan et al., arXiv 2001.08361), 8N with
activation checkpointing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..data import registry
from ..data.families import FAMILIES
from ..data.problem import read_rows
from ..data.registry import sampling_of, sharing_responses
from ..data.set_files import data_root
from ..data.sources import FAMILY_SIZE
from ..errors import UserError, did_you_mean
from ..paths import StudyFolder
from ..study.comparable import pairs
from ..study.fingerprint import Fingerprints
from ..study.runs import Arm
from ..study.schema import Benchmark, Estimators, Rounds, Study
from .jobs import SUBMITTED, Job, Jobs
from .shapes import Shape, memory, shape_of

PER_RUN = (1, 2, 4, 8, 16, 32, 64)  # numbers of devices per run that are tried, in this order
USABLE = 0.9  # share of a device's memory; the rest is fragmentation, buffers and libraries


@dataclass(frozen=True)
class Device:
    """A GPU, or one core of a CPU: memory in bytes, start-up time of a job in seconds, rates in FLOP/s."""

    title: str
    measured: bool
    memory: float
    start: float
    sample: float
    train: float
    source: str


@dataclass(frozen=True)
class Expected:
    """Mean tokens of prompts and responses, and prompts sampled for each one that dynamic sampling keeps."""

    prompt_tokens: float
    response_tokens: float
    draws: float
    source: str


def constants() -> dict[str, dict[str, Any]]:
    """The content of `constants.yaml`."""
    text = resources.files(__package__).joinpath("constants.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


class Tokens(NamedTuple):
    """Numbers of tokens sampled, scored by a forward pass, and trained on; the last two include prompts."""

    sampled: float = 0.0
    scored: float = 0.0
    trained: float = 0.0

    def plus(self, other: Tokens, times: float = 1.0) -> Tokens:
        """The sum with ``times`` of ``other``."""
        return Tokens(*(count + times * added for count, added in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Work:
    """Token counts of a study's jobs, for prompts and responses of the expected lengths."""

    study: Study
    expected: Expected

    @property
    def response(self) -> float:
        """Mean tokens of a response in training."""
        return min(self.expected.response_tokens, self.study.training.max_tokens)

    @property
    def validation(self) -> float:
        """Tokens of one response to each validation problem."""
        return self.study.data.validation_size * len(self.study.data.train) * self.response

    def sampled(self, prompts: float) -> Tokens:
        """A group of responses to each of these prompts, and their log-probabilities."""
        return Tokens(prompts * self.study.training.group * self.response, self.texts(prompts))

    def texts(self, prompts: float) -> float:
        """Tokens of prompts and of a group of responses to each."""
        return prompts * (self.expected.prompt_tokens + self.study.training.group * self.response)

    def step(self, arm: Arm) -> Tokens:
        """One batch: sampled, scored by the policy and the reference policy, and trained on.

        If only the metric `kl_initial` needs the reference policy, it scores a quarter of the groups.
        """
        method, training = arm.method(self.study), arm.training(self.study)
        prompts = training.prompts_per_step
        draws = min(self.expected.draws, method.sampler.max_batches) if method.sampler.dynamic else 1.0
        reference = 1 if "reference" in method.needs else 1 / 4
        passes = 1 + reference + training.epochs * ("step_log_probs" in method.needs)
        texts = self.texts(prompts)
        return Tokens(self.sampled(draws * prompts).sampled, passes * texts, training.epochs * texts)

    def run(self, arm: Arm) -> Tokens:
        """A run: its steps, and validation before the first step, at regular intervals and after the last step."""
        training = arm.training(self.study)
        validations = math.ceil(training.steps / training.validate_every) + 1
        return Tokens(validations * self.validation).plus(self.step(arm), training.steps)

    @cached_property
    def evaluation(self) -> Tokens:
        """The evaluation of one model on all benchmarks."""
        sampled = 0.0
        for benchmark, *_ in sharing_responses(self.study):
            sampling = sampling_of(self.study, benchmark)
            responses = benchmark_size(self.study, benchmark) * (sampling.n + self.study.evaluation.greedy)
            sampled += responses * min(self.expected.response_tokens, sampling.max_tokens)
        return Tokens(sampled)

    def start_model(self) -> Tokens:
        """Supervised fine-tuning of a tiny initial model, on examples of the expected length."""
        examples = self.study.model.warm_start.steps * self.study.model.warm_start.batch_size
        return Tokens(trained=examples * (self.expected.prompt_tokens + self.expected.response_tokens))

    def estimators(self, section: Estimators) -> Tokens:
        """The estimators on one initial model: their batches, and the true gradient at each distance.

        At each distance, estimators share the forward pass of a batch, and each has its own backward pass, which costs
        twice as much. The reference makes the optimizer steps to each distance, on separate samples.
        """
        batch, farthest = section.prompts_per_update, max(section.updates)
        passes = section.batches * (1 + 2 * len(section.methods)) / 3
        distance = self.sampled(section.true_prompts).plus(
            Tokens(trained=self.texts(batch) * passes + self.texts(section.true_prompts))
        )
        # The steps to the largest distance include those to the others.
        steps = self.sampled(farthest * batch).plus(Tokens(trained=self.texts(batch) * farthest))
        stage = self.sampled(batch * section.batches).plus(distance, len(section.updates)).plus(steps)
        return self.trained_to(section).plus(stage, len(section.steps))

    def rounds(self, section: Rounds) -> Tokens:
        """One round by each method from one initial model: pools, updates, validation after some of them."""
        stages, last, batch = len(section.steps), max(section.updates), section.prompts_per_update
        pools = stages * section.pools
        rounds = pools * len(section.methods)
        full = section.samples * (rounds + stages)  # responses to each validation problem
        single = rounds * (len(section.updates) - 1) + stages
        measured = Tokens((full + single) * self.validation, trained=self.texts(batch) * last * rounds)
        return self.trained_to(section).plus(self.sampled(last * batch), pools).plus(measured)

    def trained_to(self, section: Estimators | Rounds) -> Tokens:
        """Training by the reference until the last stage."""
        return Tokens().plus(self.step(Arm(section.reference)), max(section.steps))

    def job(self, job: Job, arms: Mapping[str, Arm], evaluated: Collection[str]) -> Tokens:
        """The tokens of a job. ``evaluated``: arms whose models are evaluated in the training process."""
        study, tokens = self.study, Tokens()
        for run in job.runs:
            if job.rule == "train":
                tokens = tokens.plus(self.run(arms[run.arm]))
            if job.rule == "evaluate" or run.arm in evaluated:
                tokens = tokens.plus(self.evaluation)
        match job.rule:
            case "evaluate":
                per_start = self.evaluation
            case "estimators":
                assert study.estimators is not None
                per_start = self.estimators(study.estimators)
            case "rounds":
                assert study.rounds is not None
                per_start = self.rounds(study.rounds)
            case _:
                per_start = self.start_model()
        return tokens.plus(per_start, len(job.starts))


def jobs_of(study: Study) -> Jobs:
    """All jobs of a study; its problems and models need not exist."""
    return Jobs(study, StudyFolder(Path(study.name)), Fingerprints(study))


def estimate(study: Study, name: str, gpus: int | None = None, per_run: int | None = None) -> dict[str, Any]:
    """The estimate as plain data, in bytes, hours and tokens.

    ``name`` is that of the device, ``gpus`` the number of devices available, ``per_run`` the number per run (None: the
    fewest on which a run fits). UserError if one is less than 1, or ``per_run`` is more than 1 and the trainer has a
    single process.
    """
    for flag, count in (("--gpus", gpus), ("--per-run", per_run)):
        if count is not None and count < 1:
            raise UserError(f"{flag}: {count} is less than 1.")
    known = constants()
    if name not in known["devices"]:
        raise UserError(f"--device: unknown device {name!r}.{did_you_mean(name, known['devices'])}")
    if study.training.trainer == "policygrain":
        if (per_run or 1) > 1:
            raise UserError(
                "--per-run: training.trainer policygrain uses one device per run; trl and verl can use more."
            )
        per_run = 1
    device = Device(**known["devices"][name])
    expected = Expected(**known["workloads"].get(study.model.start, known["workloads"]["default"]))
    work, shape = Work(study, expected), shape_of(study.model, known["shapes"])
    for devices in PER_RUN if per_run is None else (per_run,):
        by_use = memory(shape, study, expected.prompt_tokens, work.response, devices)
        if fits := sum(by_use.values()) <= USABLE * device.memory:
            break

    jobs = jobs_of(study)
    matrix, available = jobs.fingerprints.matrix, max(gpus or devices, devices)
    evaluated = matrix.evaluated_arms if study.evaluation.after_training else set()
    tokens: dict[str, list[Tokens]] = defaultdict(list)
    for job in jobs.submitted:
        tokens[job.rule].append(work.job(job, matrix.arms, evaluated))
    rules: list[dict[str, Any]] = []
    wall = 0.0
    for rule in (rule for rule in SUBMITTED if rule in tokens):
        per_job = devices if rule == "train" else 1
        hours = [per_job * device.start / 3600 + hours_of(t, shape, study, device) for t in tokens[rule]]
        # As if rules ran one after the other; in the workflow some can overlap.
        wall += max(sum(hours) / available, max(hours) / per_job)
        sums = dict(zip(Tokens._fields, map(sum, zip(*tokens[rule], strict=True)), strict=True))
        rules.append({"rule": rule, "jobs": len(hours), **sums, "device_hours": sum(hours)})
    total = {key: sum(rule[key] for rule in rules) for key in (*Tokens._fields, "device_hours")}
    return {
        "study": study.name,
        "model": study.model.start,
        "parameters": shape.parameters,
        "runs": len(matrix.runs),
        "comparisons": len(pairs(study)),
        "device": {"name": name, **asdict(device)},
        "expected": asdict(expected),
        "rules": rules,
        "total": {"jobs": len(jobs.all) + 1, **total},  # with the rule `all`
        "gpus": available,
        "wall_hours": wall,
        "devices_per_run": devices,
        "memory": {**by_use, "total": sum(by_use.values())},
        "fits": fits,
    }


def hours_of(tokens: Tokens, shape: Shape, study: Study, device: Device) -> float:
    """Device-hours of these tokens."""
    n, per_trained = shape.multiplied, 8 if study.training.activation_checkpointing else 6
    training = (2 * tokens.scored + per_trained * tokens.trained) * n / device.train
    return (2 * tokens.sampled * n / device.sample + training) / 3600


def benchmark_size(study: Study, benchmark: Benchmark) -> int:
    """Number of problems: of a synthetic family `size`, of a registered set or file all, at most `size`."""
    if benchmark.source in FAMILIES:
        return benchmark.size or FAMILY_SIZE
    if benchmark.source in registry.names():
        count = registry.dataset(benchmark.source).count
    else:
        count = sum(1 for _ in read_rows(data_root(study.data.root) / benchmark.source))
    return min(count, benchmark.size or count)
