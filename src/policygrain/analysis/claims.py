"""The claims of the papers (`claims.yaml`), and how a study decides them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from ..errors import UserError
from . import measures
from .sequential import Evidence, confidence_sequence, sequential_seeds_needed, settle
from .statistics import Difference, difference, student
from .verdicts import PValues, Side, Verdict, combine, corrected, decide, margin_tests, seeds_needed

if TYPE_CHECKING:
    import pandas as pd

    from ..results.reader import StudyResults

POINTS, LOG_RATIO = "points", "log2 ratio"
DEFAULT_MARGIN = 2.0  # points of accuracy
DEFAULT_REASON = "Published gains are of this order (MPO over PPO 1.6 points)."
LARGEST_MARGINS = {POINTS: 50.0, LOG_RATIO: 5.0}
SMALLEST_ACCURACY_MARGIN = 0.1  # points; less is a share by mistake
Design = Literal["fixed", "sequential"]


class Comparison(BaseModel):
    """A comparison of two arms: a statistic of arm ``of`` against that of arm ``than``, one number per seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: Literal["accuracy", "steps", "tokens", "metric", "probe"]
    of: str
    than: str
    claimed: Side
    metric: str = ""
    log: bool = False
    margin: float
    margin_reason: str

    @property
    def unit(self) -> str:
        """The unit of the effect, its interval and the margin."""
        return unit_of(self.statistic, self.metric, self.log)

    @model_validator(mode="before")
    @classmethod
    def _margin(cls, data: Any) -> Any:
        """Reads `margin: 2 points`; accuracy has a default."""
        if not isinstance(data, dict):
            return data
        unit = unit_of(str(data.get("statistic")), str(data.get("metric", "")), bool(data.get("log")))
        if data.get("statistic") == "accuracy":
            data = {"margin": DEFAULT_MARGIN, "margin_reason": DEFAULT_REASON} | data
        if not isinstance(margin := data.get("margin"), str):
            return data
        found = re.fullmatch(r"([-+.\deE]+) (.+)", margin.strip())
        if not found or found[2] != unit:
            raise ValueError(f"margin: {margin!r}; it is a number and the unit {unit!r}")
        return data | {"margin": found[1]}

    @field_validator("margin")
    @classmethod
    def _positive(cls, margin: float) -> float:
        if not 0 < margin < np.inf:
            raise ValueError("a margin is the smallest difference that matters, so it is larger than 0")
        return margin

    @model_validator(mode="after")
    def _in_its_unit(self) -> Comparison:
        if self.margin > LARGEST_MARGINS.get(self.unit, np.inf):
            raise ValueError(f"margin: {self.margin:g} {self.unit} is larger than any difference; check its unit")
        if self.statistic == "accuracy" and self.margin < SMALLEST_ACCURACY_MARGIN:
            raise ValueError(f"margin: {self.margin:g}; margins of accuracy are in points, not shares: 2 is 2%")
        if self.statistic in ("metric", "probe") and not self.metric:
            raise ValueError(f"metric: the statistic {self.statistic!r} needs one")
        return self


class Claim(BaseModel):
    """A claim of a paper, and the comparisons that test it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str
    text: str
    reading: str = ""
    comparisons: list[Comparison]


class Finding(NamedTuple):
    """The result of one comparison; effect and interval are in the unit of its margin."""

    effect: float
    low: float  # 95% interval, not corrected for multiple comparisons
    high: float
    n: int
    unit: str  # of replication
    p: PValues  # corrected by Holm's method over all comparisons of the ledger
    verdict: Verdict
    seeds_needed: int | None  # approximate number that would decide; None: more than 1,000, or not known


class ClaimResult(NamedTuple):
    """A claim with its findings and verdict; without the records for it, both are empty and ``missing`` says why."""

    name: str
    claim: Claim
    findings: list[Finding]
    verdict: Verdict | None
    missing: str = ""

    @property
    def decisive(self) -> int:
        """The comparison that the verdict rests on: the first of this verdict, or of those that hold the weakest."""
        if self.verdict == "supported":
            return max(range(len(self.findings)), key=lambda i: self.findings[i].p.supports)
        return next(i for i, finding in enumerate(self.findings) if finding.verdict == self.verdict)


def unit_of(statistic: str, metric: str, log: bool) -> str:
    """The unit of a comparison's effect: points of percent, log2 of a ratio, or that of the metric."""
    if log or statistic in ("steps", "tokens"):
        return LOG_RATIO
    return POINTS if statistic == "accuracy" or metric == "clip_fraction" else metric


def load_claims(path: Path | None = None) -> dict[str, Claim]:
    """All claims by name; ``path`` is by default the ledger of the package."""
    where = path or resources.files(__package__).joinpath("claims.yaml")
    claims = {}
    for name, data in yaml.safe_load(where.read_text(encoding="utf-8")).items():
        try:
            claims[name] = Claim.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in (name, *first["loc"]))
            raise UserError(f"{path or 'claims.yaml'}: {key}: {first['msg'].removeprefix('Value error, ')}.") from error
    return claims


def compare(results: StudyResults, c: Comparison) -> Difference:
    """The difference that a comparison asks for, in its unit, over the seeds that both arms have."""
    if c.statistic == "accuracy":
        return difference(*measures.paired_scores(results, c.of, c.than)).times(100)
    if c.statistic in ("steps", "tokens"):
        return student(measures.reached(results, c.of, c.than, c.statistic).to_numpy(dtype=float))
    read: Callable[[str], pd.Series] = (
        (lambda arm: measures.late(results, arm, c.metric))
        if c.statistic == "metric"
        else (lambda ratio: measures.probed(results, ratio, c.metric))
    )
    a, b = read(c.of), read(c.than)
    seeds = sorted(set(a.index) & set(b.index))
    if not seeds:
        raise UserError(f"no seed with {c.metric!r} of both {c.of!r} and {c.than!r}: run `snakemake all`.")
    one, two = (values.loc[seeds].to_numpy(dtype=float) for values in (a, b))
    return student(np.log2(one / two) if c.log else one - two)


def decide_claims(
    claims: dict[str, Claim], compare: Callable[[Comparison], Difference], design: Design = "fixed"
) -> list[ClaimResult]:
    """Decide every claim. A claim has no verdict if ``compare`` raises a UserError for one of its comparisons.

    ``design``: `fixed` for a number of seeds that was planned beforehand; `sequential` where seeds are added until
    there is a verdict, which needs them in the order in which they were added.
    """
    found: dict[str, list[Difference]] = {}
    missing: dict[str, str] = {}
    for name, claim in claims.items():
        try:
            found[name] = [compare(c) for c in claim.comparisons]
        except UserError as error:
            missing[name] = str(error)
    asked = [(c, d) for name, there in found.items() for c, d in zip(claims[name].comparisons, there, strict=True)]
    findings = iter(_fixed(asked) if design == "fixed" else _sequential(asked))
    results = []
    for name, claim in claims.items():
        own = [next(findings) for _ in found.get(name, [])]
        verdict = combine([f.verdict for f in own]) if own else None
        results.append(ClaimResult(name, claim, own, verdict, missing.get(name, "")))
    return results


def _fixed(asked: Sequence[tuple[Comparison, Difference]]) -> list[Finding]:
    """By tests for a planned number of seeds."""
    tests = corrected([margin_tests(d, c.claimed, c.margin) for c, d in asked])
    return [
        _finding(d, p, decide(p), (d.low, d.high), seeds_needed(d, c.claimed, c.margin, len(asked)))
        for (c, d), p in zip(asked, tests, strict=True)
    ]


def _sequential(asked: Sequence[tuple[Comparison, Difference]]) -> list[Finding]:
    """By the order of seeds: after each one, verdicts are recorded."""
    ledger = [Evidence(c.claimed, c.margin) for c, _ in asked]
    for seed in range(max((len(d.values) for _, d in asked), default=0)):
        for evidence, (_, d) in zip(ledger, asked, strict=True):
            evidence.append(d.values[seed : seed + 1])
        settle(ledger)
    findings = []
    tests = corrected([e.p_values() for e in ledger])
    for (c, d), evidence, p in zip(asked, ledger, tests, strict=True):
        needed = sequential_seeds_needed(d, c.claimed, c.margin, len(asked))
        findings.append(_finding(d, p, evidence.verdict, confidence_sequence(d.values)[-1], needed))
    return findings


def _finding(d: Difference, p: PValues, verdict: Verdict, ends: tuple[float, float], needed: int | None) -> Finding:
    return Finding(d.mean, *ends, d.n, d.unit, p, verdict, needed if verdict == "undecided" else None)
