"""The work of a study's jobs: operations by phase, and tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..study.runs import Arm
from ..study.schema import Benchmark, Estimators, Rounds, Study
from ..tasks import registry
from ..tasks.families import FAMILIES
from ..tasks.problem import read_rows
from ..tasks.registry import sampling_of, sharing_responses
from ..tasks.set_files import data_root
from ..tasks.sources import FAMILY_SIZE
from .devices import Expected, Phase
from .loads import Load, Shape, Texts, decode, score, update

# Maximum number of sequences that an engine samples at once.
SEQUENCES = {"vllm": 512, "transformers": 256}
# Share of a batch that the start policy scores only for the metric `kl_initial`.
REFERENCE_SHARE = 0.25
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass
class Work:
    """Loads by phase, and tokens, of a part of a study."""

    loads: dict[Phase, Load] = field(default_factory=dict)
    generated: float = 0.0  # tokens sampled
    trained: float = 0.0  # response tokens in optimizer steps

    def __add__(self, other: Work) -> Work:
        phases = self.loads | other.loads
        loads = {phase: self.loads.get(phase, Load()) + other.loads.get(phase, Load()) for phase in phases}
        return Work(loads, self.generated + other.generated, self.trained + other.trained)

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
    expected: Expected
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
    def validation_problems(self) -> int:
        """Number of validation problems of all sources."""
        return self.study.data.validation_size * len(self.study.data.train)

    def _opened(self, models: int = 1) -> Work:
        return Work({"load": Load(1, bytes=self.shape.parameters * self.width) * models})

    def _texts(self, prompts: float, responses: float, longest: int) -> Texts:
        """The texts on each device; ``longest`` is the maximum length of a response in tokens."""
        length = min(self.expected.response_tokens, longest)
        return Texts(prompts / self.devices, self.expected.prompt_tokens, responses / self.devices, length)

    def sampling(self, engine: str, prompts: float, responses: float, longest: int) -> Work:
        """Work of sampling and grading responses; loads are per device, ``longest`` is the maximum length in tokens."""
        phase: Phase = "decode_transformers" if engine == "transformers" else "decode"
        texts = self._texts(prompts, responses, longest)
        at_once = min(self.sequences, SEQUENCES["transformers" if engine == "transformers" else "vllm"])
        load = decode(self.shape, self.compute, texts, longest, at_once)
        return Work({phase: load, "judge": Load(texts.responses)}, generated=responses * texts.response)

    def _pass(self, prompts: float) -> Load:
        """Load of a forward pass over the groups of these prompts."""
        training = self.study.training
        texts = self._texts(prompts, prompts * training.group, training.max_tokens)
        return score(self.shape, training.micro_batch_tokens, texts)

    def _sampled(self, prompts: float) -> Work:
        """Work of sampling a group for each of these prompts, and its log-probabilities."""
        training = self.study.training
        work = self.sampling(training.engine, prompts, prompts * training.group, training.max_tokens)
        return work + Work({"score": self._pass(prompts)})

    def _updated(self, prompts: float, passes: float) -> Work:
        """Work of ``passes`` forward and backward passes over batches of ``prompts``."""
        training = self.study.training
        length = min(self.expected.response_tokens, training.max_tokens)
        return Work({"update": self._pass(prompts) * 3 * passes}, trained=prompts * training.group * length * passes)

    def step(self, arm: Arm) -> Work:
        """Work of one batch: sampling, grading, scoring by the old and the start policy, optimizer steps."""
        method, training = arm.method(self.study), arm.training(self.study)
        prompts, micro = training.prompts_per_step, training.micro_batch_tokens
        texts = self._texts(prompts, prompts * training.group, training.max_tokens)
        draws = min(self.expected.draws, method.sampler.max_batches) if method.sampler.dynamic else 1.0
        work = self.sampling(training.engine, draws * prompts, draws * prompts * training.group, training.max_tokens)
        scored = 2.0 if "reference" in method.needs else 1.0 + REFERENCE_SHARE
        scored += training.epochs if "step_log_probs" in method.needs else 0
        epoch = update(self.shape, micro, texts, training.updates_per_batch, training.activation_checkpointing)
        work += Work({"score": score(self.shape, micro, texts) * scored, "update": epoch * training.epochs})
        work.trained = prompts * training.group * texts.response * training.epochs
        return work

    def run(self, arm: Arm) -> Work:
        """Work of a run: its steps, and validation before the first, at regular intervals and after the last step."""
        training, problems = arm.training(self.study), self.validation_problems
        times = math.ceil(training.steps / training.validate_every) + 1
        validation = self.sampling(training.engine, problems, problems, training.max_tokens)
        return self._opened(2) + self.step(arm) * training.steps + validation * times  # policy and start policy

    def evaluation(self, engine: str | None = None) -> Work:
        """Work of evaluating one model on all benchmarks; ``engine``: by default that of the study's evaluation."""
        if engine is None:
            engine = "vllm" if self.study.evaluation.engine == "auto" else self.study.evaluation.engine
        work = self._opened()
        groups: dict[int, tuple[float, float]] = {}
        for benchmark, *_ in sharing_responses(self.study):
            sampling, size = sampling_of(self.study, benchmark), benchmark_size(self.study, benchmark)
            prompts, responses = groups.get(sampling.max_tokens, (0.0, 0.0))
            samples = sampling.n + self.study.evaluation.greedy
            groups[sampling.max_tokens] = prompts + size, responses + size * samples
        # Requests of all benchmarks with the same maximum length are sampled together.
        for longest, (prompts, responses) in groups.items():
            work += self.sampling(engine, prompts, responses, longest)
        return work

    def start_model(self) -> Work:
        """Work of fine-tuning a tiny initial model, on examples of the expected response length."""
        warm_start, length = self.study.model.warm_start, self.expected.response_tokens
        texts = Texts(warm_start.batch_size, self.expected.prompt_tokens, warm_start.batch_size, length)
        load = update(self.shape, 2048, texts) * warm_start.steps
        return Work({"update": load}, trained=warm_start.steps * warm_start.batch_size * length)

    def estimators(self, section: Estimators) -> Work:
        """Work of measuring the estimators on one initial model: their batches, and the true gradient at each distance.

        At each distance, the batches have one forward pass in common and a backward pass of twice its work for each
        estimator; optimizer steps by the reference, with samples of their own, lead there.
        """
        stages, batch, farthest = len(section.steps), section.prompts_per_update, max(section.updates)
        backward = self._pass(batch) * (section.batches * (1 + 2 * len(section.methods)))
        distance = self._sampled(section.true_prompts) + Work(
            {"update": backward + self._pass(section.true_prompts) * 3}
        )
        # The way to the largest distance leads through the others.
        way = self._sampled(farthest * batch) + self._updated(batch, farthest)
        stage = self._sampled(batch * section.batches) + distance * len(section.updates) + way
        return self._trained_to(section) + stage * stages

    def rounds(self, section: Rounds) -> Work:
        """Work of one round by each method, from one initial model: pools, updates, validation after some of them."""
        stages, last, problems = len(section.steps), max(section.updates), self.validation_problems
        pools = stages * section.pools
        rounds, training = pools * len(section.methods), self.study.training
        single, full = (
            self.sampling(training.engine, problems, problems * n, training.max_tokens) for n in (1, section.samples)
        )
        work = self._trained_to(section) + self._sampled(last * section.prompts_per_update) * pools
        work += full * (rounds + stages) + single * (rounds * (len(section.updates) - 1) + stages)
        return work + self._updated(section.prompts_per_update, last * rounds)

    def _trained_to(self, section: Estimators | Rounds) -> Work:
        """Work of training by the reference until the last stage."""
        return self._opened() + self.step(Arm(section.reference)) * max(section.steps)


def benchmark_size(study: Study, benchmark: Benchmark) -> int:
    """Number of problems: `size` for a synthetic family, else that of the registered set or file, at most `size`."""
    if benchmark.source in FAMILIES:
        return benchmark.size or FAMILY_SIZE
    if benchmark.source in registry.names():
        there = registry.dataset(benchmark.source).count
    else:
        there = sum(1 for _ in read_rows(data_root(study.data.root) / benchmark.source))
    return min(there, benchmark.size or there)
