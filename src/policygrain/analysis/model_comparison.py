"""Comparison of evaluated models: summaries over seeds, intervals, paired differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from ..errors import UserError
from ..grading.grader import Outcome
from ..initial_models import share_starts
from ..records import BenchmarkRecord
from ..study.fingerprint import start_seed
from . import statistics
from .evaluated_models import ModelGroup, benchmarks_of
from .measures import unit_of
from .statistics import Difference, Estimate


def baseline(groups: Sequence[ModelGroup], against: str | None) -> ModelGroup:
    """The group that the others are compared with: the one named ``against``, by default the first."""
    if against is None:
        return groups[0]
    matching = [e for e in groups if e.name == against]
    if not matching:
        raise UserError(f"--against: no {against!r} here. There are: {', '.join(e.name for e in groups)}.")
    return matching[0]


def data(groups: Sequence[ModelGroup], first: ModelGroup, differing: Sequence[str]) -> dict[str, Any]:
    """The whole comparison as JSON data. Shares are between 0 and 1; `tokens` is the mean per response."""
    return {
        "against": first.name,
        "protocol_differences": list(differing),
        "models": [
            {
                "name": group.name,
                "seeds": [m.seed for m in group.models],
                "folders": [str(m.folder.path) for m in group.models],
                "protocols": [m.protocol for m in group.models],
                "facts": [m.facts.model_dump() for m in group.models],
                "benchmarks": {
                    b: summary(group, b) | ({"difference": d.numbers()} if (d := difference(group, first, [b])) else {})
                    for b in benchmarks_of([group])
                },
            }
            for group in groups
        ],
    }


def summary(group: ModelGroup, benchmark: str) -> dict[str, Any]:
    """One benchmark of one group over all seeds: means of scores, sums of outcomes."""
    records = list(group.records(benchmark).values())
    samples = sum(sum(r.outcomes.values()) for r in records)
    ks = sorted(set.intersection(*(set(r.pass_at) for r in records)))
    kinds = dict.fromkeys([*get_args(Outcome), *(kind for r in records for kind in r.outcomes)])
    return {
        "n": records[0].n,
        "problems": records[0].problems,
        "accuracy": accuracy(group, [benchmark])._asdict(),
        "pass_at": {k: _mean([r.pass_at[k] for r in records]) for k in ks},
        "majority": _mean(votes) if (votes := [r.majority for r in records if r.majority is not None]) else None,
        "outcomes": {kind: sum(Counter(r.outcomes)[kind] for r in records) for kind in kinds},
        "truncated": _mean([r.truncated for r in records]),
        "tokens": sum(r.tokens for r in records) / max(1, samples),
    }


def average(group: ModelGroup, benchmarks: Sequence[str]) -> Estimate | None:
    """The mean over ``benchmarks``; None if a model was not evaluated on one of them."""
    if not all(len(group.records(b)) == len(group.models) for b in benchmarks):
        return None
    return accuracy(group, benchmarks)


def accuracy(group: ModelGroup, benchmarks: Sequence[str]) -> Estimate:
    """The accuracy of all models of a group, mean over ``benchmarks``."""
    return statistics.accuracy([group.scores(b) for b in benchmarks], unit_of(group.study))


def difference(group: ModelGroup, first: ModelGroup, benchmarks: Sequence[str]) -> Difference | None:
    """``group`` − ``first`` on the same problems and seeds, averaged over ``benchmarks``; None if one cannot be paired.

    Two single models are paired by problem, even if their seeds differ. An initial model is paired with every seed that
    begins from it, as by `measures.paired_scores`.
    """
    pairs = [_pairs(group, first, b) for b in benchmarks]
    if group is first or pairs[0] is None or any(p != pairs[0] for p in pairs):
        return None
    group_seeds, first_seeds = pairs[0]
    if _shared_starts(group, group_seeds) != _shared_starts(first, first_seeds):
        return None
    scores = ([group.scores(b, group_seeds) for b in benchmarks], [first.scores(b, first_seeds) for b in benchmarks])
    return statistics.difference(*scores, unit_of(group.study))


def _pairs(a: ModelGroup, b: ModelGroup, benchmark: str) -> tuple[list[str], list[str]] | None:
    """The seeds of each group to pair, in order; None without a common seed or if the problems differ."""
    of_a, of_b = a.records(benchmark), b.records(benchmark)
    if not of_a or not of_b or not _same_problems([*of_a.values(), *of_b.values()], [a, b], benchmark):
        return None
    if len(a.models) == len(b.models) == 1:
        return list(of_a), list(of_b)
    runs = of_b if a.is_start else of_a
    pairs = [(a.paired_with(seed), b.paired_with(seed)) for seed in runs]
    pairs = [(one, other) for one, other in pairs if one in of_a and other in of_b]
    return ([one for one, _ in pairs], [other for _, other in pairs]) if pairs else None


def _shared_starts(group: ModelGroup, seeds: Sequence[str]) -> list[int] | None:
    """The initial model of each seed, over which scores are averaged; None if seeds share none."""
    if group.study is None or not share_starts(group.study):
        return None
    return [start_seed(group.study, int(seed)) for seed in seeds]


def _same_problems(records: Sequence[BenchmarkRecord], groups: Sequence[ModelGroup], benchmark: str) -> bool:
    protocols = [m.protocol.get("benchmarks", {}).get(benchmark, {}) for e in groups for m in e.models]
    digests = {s["problems"] for s in protocols if "problems" in s}
    return len({r.problems for r in records}) == 1 and len(digests) <= 1


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
