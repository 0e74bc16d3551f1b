"""How models are evaluated: benchmarks with their sampling parameters, prompt, grader and engine."""

from __future__ import annotations

from typing import Literal

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
