"""How models are evaluated: benchmarks with their sampling parameters, prompt, grader and engine."""

from __future__ import annotations

from typing import Literal

from .. import digests
from ..data.sets import sampling_of
from ..records import Record
from ..study import schema
from ..study.schema import Extraction, Prompt, Sampling, Study


class Benchmark(schema.Benchmark):
    """A benchmark, as it is sampled and graded."""

    extraction: Extraction
    sampling: Sampling


class Evaluation(Record):
    """Everything but the model and the problems that a score depends on."""

    benchmarks: list[Benchmark]
    prompt: Prompt
    grader: Literal["numeric", "math"]
    engine: Literal["auto", "vllm", "transformers"]
    seed: int
    greedy: bool = False  # one greedily decoded response per problem besides the sampled ones
    stop: tuple[str, ...] = ()

    def sharing_responses(self) -> list[list[Benchmark]]:
        """The benchmarks, in groups with the same problems and sampling parameters, which share their responses."""
        groups: dict[str, list[Benchmark]] = {}
        for benchmark in self.benchmarks:
            shared = benchmark.model_dump(include={"source", "size", "sampling"})
            groups.setdefault(digests.of_json(shared), []).append(benchmark)
        return list(groups.values())


def evaluation_of(study: Study) -> Evaluation:
    """How a study evaluates; in a process that trains, with the engine of training."""
    asked = study.evaluation
    benchmarks = []
    for benchmark in asked.benchmarks:
        chosen = {"sampling": sampling_of(study, benchmark), "extraction": benchmark.extraction or study.extraction}
        benchmarks.append(Benchmark(**dict(benchmark) | chosen))
    return Evaluation(
        benchmarks=benchmarks,
        prompt=study.prompt,
        grader=study.grader,
        engine=study.training.engine if asked.after_training else asked.engine,
        seed=asked.seed,
        greedy=asked.greedy,
        stop=tuple(asked.stop),
    )
