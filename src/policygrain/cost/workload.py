"""The workload of a study: loads, tokens and jobs of its runs and evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..figures import TABLES
from ..study.runs import Arm, run_matrix
from ..study.schema import Benchmark, Probe, Study
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
# Number of ratios whose gradients the probe computes.
PROBE_RATIOS = 7


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
        sharding = self.study.training.fsdp
        return BYTES[sharding.compute] if sharding else self.width

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
        work.add("score", once + reference + (once if "step_log_probs" in method.needs else Load()))
        work.add("update", cost.update(self.shape, micro, *texts, settings.updates_per_batch, again))
        work.trained = prompts * settings.group * length
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

    def evaluation(self) -> Work:
        """Work of evaluating one model on all benchmarks."""
        engine = "vllm" if self.study.evaluation.engine == "auto" else self.study.evaluation.engine
        work = Work({"load": self.loaded})
        groups: dict[int, tuple[float, float]] = {}
        for benchmark, *_ in sharing_responses(self.study):
            sampling, size = sampling_of(self.study, benchmark), benchmark_size(self.study, benchmark)
            prompts, responses = groups.get(sampling.max_tokens, (0.0, 0.0))
            groups[sampling.max_tokens] = prompts + size, responses + size * sampling.n
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

    def probe(self, probe: Probe) -> Work:
        """Work of the probe: one batch, and a gradient per ratio, prompt and number of updates."""
        settings, own = self.study.training, self.devices
        responses, length = probe.prompts * settings.group, min(self.expected.response_tokens, settings.max_tokens)
        draws, micro = self.expected.draws, settings.micro_batch_tokens
        work = self.sampling(settings.engine, draws * probe.prompts, draws * responses, settings.max_tokens)
        texts = probe.prompts / own, self.expected.prompt_tokens, responses / own, length
        once = cost.score(self.shape, micro, *texts)
        passes = len(probe.updates) * 3 * PROBE_RATIOS
        work.add("score", once + once)
        work.add("update", Load(probe.prompts / own * passes, once.flops * passes))
        if steps := max(probe.updates):
            work.add("update", cost.update(self.shape, micro, *texts, steps, settings.activation_checkpointing))
        return work


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
    matrix = run_matrix(study)
    seeds, parts = len(study.seeds), study.evaluation.parts
    shards = math.ceil(len(matrix.evaluated) / study.evaluation.runs_per_engine)
    return {
        "prepare": 1,
        "start_model": (seeds if study.model.warm_start_per_seed else 1) if study.model.start == "tiny" else 0,
        "train": len(matrix.processes(study.seeds_per_process)),
        "probe": seeds if study.probe else 0,
        "evaluate_part": shards * parts if parts > 1 else 0,
        "evaluate": shards,
        "figures": len(study.figures) + len(TABLES),
        "report_page": 1,
        "track": 1,
        "all": 1,
    }
