"""The papers' claims with the comparisons that test them (`claims.yaml`), measured in a study's records and decided."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat

from ..errors import UserError
from ..study import Study
from ..study.comparable import pairs
from ..study.fingerprint import measured_starts
from ..study.runs import RunMatrix, run_matrix
from ..study.schema import Estimators, Rounds
from ..text import some
from . import measures
from .measures import BEFORE
from .statistics import LEVEL, SEEDS, STARTS, Difference, ranked, student
from .verdicts import PValues, Side, Verdict, combine, corrected, decide, distance_to_decide, effect_tests, seeds_needed

if TYPE_CHECKING:
    import pandas as pd

    from ..results import StudyResults

POINTS, LOG_RATIO = "points", "log2 ratio"
Statistic = Literal["accuracy", "benchmarks", "drop", "steps", "tokens", "estimator", "round"]
EVALUATED = ("accuracy", "benchmarks")  # statistics of evaluated final models
COSTS = ("steps", "tokens")
MEASURED_ONCE = ("estimator", "round")  # per initial model
ROUND_UNITS = {"reward": POINTS, "entropy": "nats"}


class Published(BaseModel):
    """A published size of an effect: a number without a sign, in the comparison's unit, and its place in the paper."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    size: PositiveFloat
    where: str


class Comparison(BaseModel):
    """A comparison of two arms: a statistic of arm ``of`` against that of arm ``than``, one number per replicate."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: Statistic
    of: str
    than: str
    claimed: Side
    metric: str = ""
    log: bool = False
    updates: int | None = None
    published: Published | None = None

    @property
    def unit(self) -> str:
        """The unit of the effect, its interval and the published size."""
        return unit_of(self.statistic, self.metric, self.log)

    @property
    def replicates(self) -> str:
        """The unit of replication: training seeds or initial models."""
        return STARTS if self.statistic in MEASURED_ONCE else SEEDS

    @property
    def size(self) -> float | None:
        """The published size, without a sign; None: the paper gives none."""
        return self.published.size if self.published else None


class Claim(BaseModel):
    """A claim of a paper with the comparisons that test it, or the reason why none does."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: str  # the paper, and the table, figure or section
    text: str
    reading: str = ""
    excluded: str = ""
    comparisons: list[Comparison] = []


def unit_of(statistic: str, metric: str, log: bool) -> str:
    """The unit of a comparison's effect: percentage points, log2 of a ratio, or the unit of the metric."""
    if log or statistic in COSTS:
        return LOG_RATIO
    if statistic == "round":
        return ROUND_UNITS.get(metric or "reward", metric)
    if statistic == "benchmarks":
        return statistic
    return metric if statistic == "estimator" and metric != "clip_fraction" else POINTS


def load_claims() -> dict[str, Claim]:
    """The claims that are tested, by name."""
    return {name: claim for name, claim in _all_claims().items() if not claim.excluded}


def excluded_claims() -> dict[str, Claim]:
    """The claims that are not tested, with their reasons."""
    return {name: claim for name, claim in _all_claims().items() if claim.excluded}


@functools.cache
def _all_claims() -> dict[str, Claim]:
    text = resources.files(__package__).joinpath("claims.yaml").read_text(encoding="utf-8")
    return {name: Claim.model_validate(data) for name, data in yaml.safe_load(text).items()}


# ---- a comparison in a study's records ------------------------------------------------------------------------------


class NotFlat(UserError):
    """Learning curves still rise at the end of training, so the cost of convergence is unknown."""


def compare(results: StudyResults, c: Comparison) -> Difference:
    """The difference that a comparison asks for, in its unit.

    Over the training seeds that both arms have, or all initial models that the study plans. UserError names
    missing records. NotFlat if costs of convergence are compared and the curves of ``than`` have not flattened.
    """
    if c.statistic in MEASURED_ONCE:
        return _over_starts(results, c)
    if c.statistic == "accuracy":
        return measures.accuracy_difference(results, c.of, c.than)
    if c.statistic in COSTS and (rise := measures.late_rise(results, c.than)).above(0.0) < LEVEL:
        raise NotFlat(
            f"Curves have not flattened: in the last quarter of training validation accuracy of {c.than!r} rises "
            f"by {rise.mean:.1f} points [{rise.low:.1f}, {rise.high:.1f}] over {rise.n} {rise.unit}."
        )
    values = measures.by_unit(results, _by_seed(results, c))
    if not len(values):
        raise UserError(f"no seed with {c.statistic} of both {c.of!r} and {c.than!r}: run `snakemake all`.")
    return (ranked if c.statistic in COSTS else student)(values, measures.unit_of(results.study))


def _by_seed(results: StudyResults, c: Comparison) -> pd.Series:
    """The difference (or log2 ratio) of two arms by training seed."""
    if c.statistic in COSTS:
        return measures.reached(results, c.of, c.than, c.statistic)
    if c.statistic == "benchmarks":
        return measures.benchmarks_won(results, c.of, c.than)
    return measures.largest_drop(results, c.of) - measures.largest_drop(results, c.than)


def _over_starts(results: StudyResults, c: Comparison) -> Difference:
    """The difference over initial models: of a round's reward or entropy, or of an estimator's column."""
    if (wanted := _one_stage(results.study, c)) is not None:
        raise UserError(f"{c.of} − {c.than}: needs {wanted}.")
    starts = measured_starts(results.study, _section(results.study, c))
    if c.statistic == "round":
        a, b = (measures.after_round(results, name, c.metric or "reward", c.updates) for name in (c.of, c.than))
    else:
        a, b = (measures.estimated(results, name, c.metric, c.updates) for name in (c.of, c.than))
    common = a.index.intersection(b.index)
    # Estimators are compared at each stage and distance; then the mean is taken.
    by_start = _differences(a.loc[common], b.loc[common], c).groupby(level="seed").mean()
    if missing := sorted(set(starts) - set(by_start.index)):
        raise UserError(
            f"{c.statistic}s of {c.of!r} and {c.than!r} are not measured on initial model{'s' * (len(missing) > 1)} "
            f"{', '.join(map(str, missing))}: run `snakemake all`."
        )
    return student(by_start.to_numpy(dtype=float), STARTS)


def _section(study: Study, c: Comparison) -> Estimators | Rounds | None:
    """The section of the study file that plans the measurements of a comparison."""
    return study.estimators if c.statistic == "estimator" else study.rounds


def _one_stage(study: Study, c: Comparison) -> str | None:
    """The requirement that a comparison of rounds at several stages violates (rule 6 of docs/design.md), or None."""
    stages = study.rounds.steps if study.rounds and c.statistic == "round" else []
    if len(stages) < 2:
        return None
    return f"one stage in `rounds.steps`, not {len(stages)}: a mean over stages can hide effects of opposite sign"


def _differences(a: pd.Series, b: pd.Series, c: Comparison) -> pd.Series:
    """a − b, or log2(a / b)."""
    if not c.log:
        return a - b
    for name, values in ((c.of, a), (c.than, b)):
        if (values <= 0).any():
            raise UserError(
                f"{c.metric} of {name!r} is {values.min():.3g} at {values.idxmin()}, which has no logarithm."
            )
    return (a / b).apply(math.log2)


# ---- verdicts on all claims, corrected together ----------------------------------------------------------------------


class Finding(NamedTuple):
    """The result of one comparison, in the comparison's unit."""

    difference: Difference  # its interval is not corrected for multiple comparisons
    p: PValues  # corrected by Holm's method over all comparisons of the ledger
    verdict: Verdict
    seeds_needed: int | None  # approximate number that would decide; None: more than 1,000, or not known

    @property
    def smaller(self) -> bool:
        """Whether the effect is shown to be smaller than the published size, with any verdict."""
        return self.p.smaller < LEVEL


class ClaimResult(NamedTuple):
    """A claim with its verdict and a finding per comparison; without findings, ``missing`` gives the reason."""

    name: str
    claim: Claim
    findings: list[Finding]
    verdict: Verdict | None  # None: no records
    missing: str = ""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        if self.verdict == "holds" and any(finding.smaller for finding in self.findings):
            return "holds, smaller than published"
        return self.verdict or "no records"

    @property
    def compared(self) -> list[tuple[Comparison, Finding]]:
        """The comparisons with their findings; empty where there are none."""
        return list(zip(self.claim.comparisons, self.findings, strict=False))


def decide_study(results: StudyResults) -> list[ClaimResult]:
    """Decide the claims of the package from a study's records."""
    where = f"{results.folder.path}: "  # all claims are about one study, whose folder is a temporary one in `thaw`
    decided = decide_claims(load_claims(), lambda c: compare(results, c), comparisons_planned(results.study))
    return [claim._replace(missing=claim.missing.removeprefix(where)) for claim in decided]


def decide_claims(
    claims: dict[str, Claim], compare: Callable[[Comparison], Difference], planned: int = 0
) -> list[ClaimResult]:
    """Decide every claim, with all comparisons corrected together.

    A claim has no verdict if ``compare`` raises UserError for one of its comparisons; after NotFlat it is inconclusive.
    ``planned``: number of comparisons; those without a difference count in the correction as p-values of 1.
    """
    differences: dict[str, list[Difference]] = {}
    missing: dict[str, str] = {}
    not_decidable: dict[str, Verdict] = {}
    for name, claim in claims.items():
        try:
            differences[name] = [compare(c) for c in claim.comparisons]
        except UserError as error:
            missing[name] = str(error)
            if isinstance(error, NotFlat):
                not_decidable[name] = "inconclusive"
    comparisons = [c for name in differences for c in claims[name].comparisons]
    findings = iter(_findings(comparisons, [d for measured in differences.values() for d in measured], planned))
    results = []
    for name, claim in claims.items():
        of_claim = [next(findings) for _ in differences.get(name, [])]
        verdict = combine([f.verdict for f in of_claim]) if of_claim else not_decidable.get(name)
        results.append(ClaimResult(name, claim, of_claim, verdict, missing.get(name, "")))
    return results


def _findings(comparisons: Sequence[Comparison], differences: Sequence[Difference], planned: int) -> list[Finding]:
    pairs = list(zip(comparisons, differences, strict=True))
    tests = [effect_tests(d, c.claimed, c.size) for c, d in pairs]
    tests += [PValues(1.0, 1.0, 1.0)] * (planned - len(pairs))
    findings = []
    for (c, d), p in zip(pairs, corrected(tests), strict=False):
        verdict = decide(p)
        distance = distance_to_decide(d.mean, c.claimed, c.size)
        needed = seeds_needed(d, distance, len(tests)) if verdict == "inconclusive" else None
        findings.append(Finding(d, p, verdict, needed))
    return findings


# ---- before training -------------------------------------------------------------------------------------------------


def plan_notes(study: Study) -> list[str]:
    """A note on the claims that will have no verdict, with what the study lacks for them."""
    claims, matrix = load_claims(), run_matrix(study)
    without = [why for claim in claims.values() if (why := _missing(study, matrix, claim, least=2))]
    if len(without) == len(claims):
        return ["claims: none of the claims of the papers will have a verdict; the study lacks arms or seeds."]
    needs = some(list(dict.fromkeys(without)), 4)
    return [f"claims: {len(without)} of {len(claims)} will have no verdict; they need {needs}."] if without else []


def comparisons_planned(study: Study) -> int:
    """Number of comparisons of the papers' claims that the study plans; p-values are corrected over them."""
    matrix = run_matrix(study)
    return sum(len(claim.comparisons) for claim in load_claims().values() if not _missing(study, matrix, claim))


def comparisons_asked(study: Study) -> int:
    """Number of comparisons that p-values are corrected over, in the largest ledger that the study plans."""
    return max(comparisons_planned(study), len(pairs(study)))


def _missing(study: Study, matrix: RunMatrix, claim: Claim, least: int = 0) -> str:
    """The requirement of the first comparison that the study does not plan; empty if it plans all."""
    return next(filter(None, (lacking(study, matrix, c, least) for c in claim.comparisons)), "")


def lacking(study: Study, matrix: RunMatrix, c: Comparison, least: int = 0) -> str | None:
    """The arms, measurements or ``least`` replicates that a comparison needs and a study does not plan, or None."""
    if c.statistic in MEASURED_ONCE:
        name, section = f"{c.statistic}s", _section(study, c)
        if section is None:
            return f"`{name}`"
        if missing := [method for method in (c.of, c.than) if method not in (*section.methods, BEFORE)]:
            return f"{' and '.join(missing)} in `{name}`"
        if c.updates not in (None, *section.updates):
            return f"{c.updates} updates in `{name}`"
        if len(measured_starts(study, section)) < least:
            return f"{least} initial models in `{name}`"
        return _one_stage(study, c)
    runs = matrix.evaluated if c.statistic in EVALUATED else matrix.runs
    seeds = {arm: {run.seed for run in runs if run.arm == arm} for arm in (c.of, c.than)}
    if missing := [arm for arm in seeds if not seeds[arm]]:
        return f"{' and '.join(missing)} in {'evaluated ' if c.statistic in EVALUATED else ''}experiments"
    if len(set.intersection(*seeds.values())) < least:
        return f"{least} seeds of both {c.of} and {c.than}"
    return None
