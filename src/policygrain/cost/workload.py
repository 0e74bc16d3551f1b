"""The workload of a study: loads, tokens and jobs of its runs and evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..figures import TABLES
from ..study.design import Estimators, Rounds
from ..study.fingerprint import measured_starts, start_processes, start_seeds
from ..study.runs import Arm, run_matrix
from ..study.schema import Benchmark, Study
from ..tasks import registry
from ..tasks.check import data_root
from ..tasks.families import FAMILIES
from ..tasks.problem import read_rows
from ..tasks.registry import sampling_of, sharing_responses
from ..tasks.sources import FAMILY_SIZE
from . import loads as cost
from .constants import Phase, Workload
from .loads import Load
from .shapes import BYTES, Shape

# Maximum number of sequences that an engine samples at once.
SEQUENCES = {"vllm": 512, "transformers": 256}
# Share of a batch that the start policy scores only for the metric `kl_initial`.
REFERENCE_SHARE = 0.25


@dataclass
class Work:
    """Loads by phase, and tokens, of a part of a study."""

    loads: dict[Phase, Load] = field(default_factory=dict)
    generated: float = 0.0  # tokens sampled
    trained: float = 0.0  # response tokens in optimizer steps

    def add(self, phase: Phase, load: Load) -> None:
        """Add a load to a phase."""
        self.loads[phase] = self.loads.get(phase, Load()) + load

    def __add__(self, other: Work) -> Work:
        both = Work(dict(self.loads), self.generated + other.generated, self.trained + other.trained)
        for phase, load in other.loads.items():
            both.add(phase, load)
        return both

    def __mul__(self, times: float) -> Work:
        loads = {phase: load * times for phase, load in self.loads.items()}
        return Work(loads, self.generated * times, self.trained * times)


@dataclass(frozen=True)
class Planner:
    """A study with the shape of its model and the expected lengths of texts.

    The batches of a run are divided among its ``devices``; each samples up to ``sequences`` responses at once, limited
    by `SEQUENCES` of its engine.
    """

    study: Study
    shape: Shape
    expected: Workload
    devices: int = 1
    sequences: int = max(SEQUENCES.values())

    @property
    def width(self) -> int:
        """Bytes per number of weights and optimizer state."""
        return BYTES[self.study.model.dtype]

    @property
    def compute(self) -> int:
        """Bytes per number in forward and backward passes, and in the engine."""
        compute = self.study.training.compute
        return min(self.width, BYTES["bfloat16" if compute == "auto" else compute])

    @property
    def loaded(self) -> Load:
        """Load of reading a model's weights from disk."""
        return Load(1, bytes=self.shape.parameters * self.width)

    def sampling(self, engine: str, prompts: float, responses: float, longest: int) -> Work:
        """Work of sampling and grading responses; loads are per device, ``longest`` is the maximum length in tokens."""
        kind = "transformers" if engine == "transformers" else "vllm"
        phase: Phase = "decode_transformers" if kind == "transformers" else "decode"
        length, own = min(self.expected.response_tokens, longest), self.devices
        texts = prompts / own, self.expected.prompt_tokens, responses / own, length
        at_once = min(self.sequences, SEQUENCES[kind])
        load = cost.decode(self.shape, self.compute, *texts, longest, at_once)
        return Work({phase: load, "judge": Load(responses / own)}, generated=responses * length)

    def step(self, arm: Arm) -> Work:
        """Work of one batch: sampling, grading, scoring by the old and the start policy, optimizer steps."""
        method, settings, own = arm.method(self.study), arm.training(self.study), self.devices
        prompts, micro = settings.prompts_per_step, settings.micro_batch_tokens
        again = settings.activation_checkpointing
        draws = min(self.expected.draws, method.sampler.max_batches) if method.sampler.dynamic else 1.0
        work = self.sampling(settings.engine, draws * prompts, draws * prompts * settings.group, settings.max_tokens)
        length = min(self.expected.response_tokens, settings.max_tokens)
        texts = prompts / own, self.expected.prompt_tokens, prompts * settings.group / own, length
        once = cost.score(self.shape, micro, *texts)
        reference = once * (1.0 if "reference" in method.needs else REFERENCE_SHARE)
        work.add("score", once + reference)
        if "step_log_probs" in method.needs:
            work.add("score", once * settings.epochs)
        epoch = cost.update(self.shape, micro, *texts, settings.updates_per_batch, again)
        work.add("update", epoch * settings.epochs)
        work.trained = prompts * settings.group * length * settings.epochs
        return work

    def run(self, arm: Arm) -> Work:
        """Work of a run: its steps, and validation before the first, at regular intervals and after the last step."""
        settings, problems = arm.training(self.study), self.validation_problems
        times = math.ceil(settings.steps / settings.validate_every) + 1
        validation = self.sampling(settings.engine, problems, problems, settings.max_tokens)
        opened = Work({"load": self.loaded * 2})  # the policy and the start policy
        return opened + self.step(arm) * settings.steps + validation * times

    @property
    def validation_problems(self) -> int:
        """Number of validation problems of all sources."""
        return self.study.data.validation_size * len(self.study.data.train)

    def evaluation(self, engine: str | None = None) -> Work:
        """Work of evaluating one model on all benchmarks; ``engine``: by default that of the study's evaluation."""
        if engine is None:
            engine = "vllm" if self.study.evaluation.engine == "auto" else self.study.evaluation.engine
        work = Work({"load": self.loaded})
        groups: dict[int, tuple[float, float]] = {}
        for benchmark, *_ in sharing_responses(self.study):
            sampling, size = sampling_of(self.study, benchmark), benchmark_size(self.study, benchmark)
            prompts, responses = groups.get(sampling.max_tokens, (0.0, 0.0))
            each = sampling.n + self.study.evaluation.greedy
            groups[sampling.max_tokens] = prompts + size, responses + size * each
        # Requests of all benchmarks with the same maximum length are sampled together.
        for longest, (prompts, responses) in groups.items():
            work += self.sampling(engine, prompts, responses, longest)
        return work

    def start_model(self) -> Work:
        """Work of fine-tuning a tiny start model, on examples of the expected response length."""
        warm_start, length = self.study.model.warm_start, self.expected.response_tokens
        size = warm_start.batch_size
        load = cost.update(self.shape, 2048, size, self.expected.prompt_tokens, size, length) * warm_start.steps
        return Work({"update": load}, trained=warm_start.steps * size * length)

    def estimators(self, section: Estimators) -> Work:
        """Work of measuring the estimators on one start model: their batches, and the true gradient at each distance.

        At each distance, the batches have one forward pass in common and a backward pass of twice its work for each
        estimator; optimizer steps by the reference, with samples of their own, lead there.
        """
        work = self._stages(section) + self._sampled(section.prompts_per_update * section.batches) * len(section.steps)
        ordinary = self._pass(section.prompts_per_update) * section.batches
        true = self._pass(section.true_prompts) * 3
        for _ in section.steps:
            for _distance in section.updates:
                work += self._sampled(section.true_prompts)
                work.add("update", ordinary * (1 + 2 * len(section.methods)) + true)
            # The way to the largest distance leads through the others.
            away = max(section.updates) * section.prompts_per_update
            work += self._sampled(away)
            work.add("update", self._pass(section.prompts_per_update) * 3 * max(section.updates))
            work.trained += self._tokens(away)
        return work

    def rounds(self, section: Rounds) -> Work:
        """Work of one round by each method, from one start model: pools, updates, and validation after some of them."""
        pools, last, settings = len(section.steps) * section.pools, max(section.updates), self.study.training
        pool = last * section.prompts_per_update
        problems = self.validation_problems
        single, full = (
            self.sampling(settings.engine, problems, problems * n, settings.max_tokens) for n in (1, section.samples)
        )
        rounds, stages = pools * len(section.methods), len(section.steps)
        work = self._stages(section) + self._sampled(pool) * pools + full * (rounds + stages)
        work += single * (rounds * (len(section.updates) - 1) + stages)
        work.add("update", self._pass(section.prompts_per_update) * 3 * (last * pools * len(section.methods)))
        work.trained += self._tokens(pool) * pools * len(section.methods)
        return work

    def _stages(self, section: Estimators | Rounds) -> Work:
        """Work of training by the reference until the last stage."""
        return Work({"load": self.loaded}) + self.step(Arm(section.reference)) * max(section.steps)

    def _sampled(self, prompts: float) -> Work:
        """Work of sampling a group for each of these prompts, and its log-probabilities."""
        settings = self.study.training
        work = self.sampling(settings.engine, prompts, prompts * settings.group, settings.max_tokens)
        work.add("score", self._pass(prompts))
        return work

    def _pass(self, prompts: float) -> Load:
        """Load of a forward pass over the groups of these prompts."""
        settings, own = self.study.training, self.devices
        length = min(self.expected.response_tokens, settings.max_tokens)
        texts = prompts / own, self.expected.prompt_tokens, prompts * settings.group / own, length
        return cost.score(self.shape, settings.micro_batch_tokens, *texts)

    def _tokens(self, prompts: float) -> float:
        """Response tokens in the groups of these prompts."""
        settings = self.study.training
        return prompts * settings.group * min(self.expected.response_tokens, settings.max_tokens)


def benchmark_size(study: Study, benchmark: Benchmark) -> int:
    """Number of problems: `size` for a synthetic family, else that of the registered set or file, at most `size`."""
    if benchmark.source in FAMILIES:
        return benchmark.size or FAMILY_SIZE
    if benchmark.source in registry.names():
        there = registry.dataset(benchmark.source).count
    else:
        there = sum(1 for _ in read_rows(data_root(study.data.root) / benchmark.source))
    return min(there, benchmark.size or there)


def jobs(study: Study) -> dict[str, int]:
    """Jobs by rule, as in `snakemake --dry-run all`."""
    matrix, parts = run_matrix(study), study.evaluation.parts
    shards = len(evaluated_models(study))
    return {
        "prepare": 1,
        "start_model": len(start_processes(study, start_seeds(study))) if study.model.start == "tiny" else 0,
        "train": len(matrix.processes(study.seeds_per_process)),
        "estimators": len(start_processes(study, measured_starts(study, study.estimators))),
        "rounds": len(start_processes(study, measured_starts(study, study.rounds))),
        "evaluate_part": shards * parts if parts > 1 else 0,
        "evaluate": shards,
        "figures": len(study.figures) + len(TABLES),
        "report_page": 1,
        "track": 1,
        "all": 1,
    }


def evaluated_models(study: Study) -> list[int]:
    """The number of models in each job that evaluates; start models are with the first.

    With `evaluation.after_training` these are the only ones, since final models are evaluated by the jobs that train.
    """
    starts, each = len(start_seeds(study)), study.evaluation.runs_per_engine
    runs = 0 if study.evaluation.after_training else len(run_matrix(study).evaluated)
    shards = [min(each, runs - i) for i in range(0, runs, each)] or [0]
    return [shards[0] + starts, *shards[1:]]
