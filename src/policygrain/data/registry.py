"""The registered problem sets by name, and the sampling parameters that they are evaluated with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import digests
from ..errors import UserError, did_you_mean
from . import coding_sets, competition_sets, mathematics_sets
from .problem_set import ProblemSet

if TYPE_CHECKING:
    from ..study.schema import Benchmark, Sampling, Study

# By name. A set's name in studies is that of its function.
SETS = {
    of.name: of
    for module in (competition_sets, mathematics_sets, coding_sets)
    for of in vars(module).values()
    if isinstance(of, ProblemSet)
}


def problem_set(name: str) -> ProblemSet:
    """The set called ``name``. UserError with similar names if there is none."""
    if name not in SETS:
        raise UserError(f"{name!r} is no registered problem set.{did_you_mean(name, SETS)}{how_to_read(name)}")
    return SETS[name]


def how_to_read(name: str) -> str:
    """Advice for a file of problems that is not in JSON Lines; "" for other names."""
    if not name.endswith((".parquet", ".json", ".csv", ".tsv", ".arrow")):
        return ""
    return (
        " Files of your own are read as JSON Lines (.jsonl) with `problem` and `answer` in each line; with pandas: "
        "pandas.read_parquet(FILE).rename(columns={...}).to_json(OUT, orient='records', lines=True)."
    )


def protocol(source: str) -> dict[str, Any]:
    """The sampling parameters with which a benchmark is published; empty for other sources."""
    of = SETS.get(source)
    return {"n": of.n, "temperature": of.temperature, "top_p": 1.0} if of and of.n else {}


def sampling_of(study: Study, benchmark: Benchmark) -> Sampling:
    """Sampling parameters of responses to ``benchmark``.

    Its own `sampling` comes first, then the published one if `evaluation.registered_sampling`, then the study's.
    """
    if benchmark.sampling is not None:
        return benchmark.sampling
    published = protocol(benchmark.source) if study.evaluation.registered_sampling else {}
    return study.evaluation.sampling.model_copy(update=published)


def sharing_responses(study: Study) -> list[list[Benchmark]]:
    """The benchmarks, in groups with the same problems and sampling parameters, which share their responses."""
    groups: dict[str, list[Benchmark]] = {}
    for benchmark in study.evaluation.benchmarks:
        shared = {"source": benchmark.source, "size": benchmark.size, **sampling_of(study, benchmark).model_dump()}
        groups.setdefault(digests.of_json(shared), []).append(benchmark)
    return list(groups.values())
