"""Claims that a study, as planned, cannot decide, with reasons; known before training."""

from __future__ import annotations

from collections.abc import Iterator

from ..study import Study
from ..study.fingerprint import measured_starts
from ..study.runs import RunMatrix, run_matrix
from ..text import some
from .comparisons import common_seeds, lacking
from .contrasts import planned_contrasts
from .ledger import Claim, Comparison, load_claims
from .statistics import STARTS


def plan_notes(study: Study) -> list[str]:
    """Notes on claims without verdicts: arms that are missing, arms without a common seed, and single seeds."""
    claims, matrix = load_claims(), run_matrix(study)
    notes = []
    without = {name: why for name, claim in claims.items() if (why := _missing(study, matrix, claim))}
    if len(without) == len(claims):
        notes.append("claims: none of the claims of the papers will have a verdict; the study lacks arms.")
    elif without:
        listed = some([f"{name} (needs {why})" for name, why in without.items()], 2)
        notes.append(f"claims: {len(without)} of {len(claims)} will have no verdict: {listed}.")
    planned = {name: claim for name, claim in claims.items() if name not in without}
    for name, c in _comparisons(planned):
        if c.replicates != STARTS and not common_seeds(matrix, c):
            notes.append(f"claims: {name} compares {c.of} and {c.than}, which have no seed in common: no verdict.")
    single = [name for name, c in _comparisons(planned) if _replicates(study, matrix, c) == 1]
    if single:
        notes.append(f"claims: one seed decides nothing, so these stay undecided: {', '.join(dict.fromkeys(single))}.")
    return notes


def comparisons_asked(study: Study) -> int:
    """Number of comparisons that p-values are corrected over, in the largest ledger that the study plans."""
    matrix = run_matrix(study)
    claims = {name: claim for name, claim in load_claims().items() if not _missing(study, matrix, claim)}
    return max(sum(lacking(study, matrix, c) is None for _, c in _comparisons(claims)), planned_contrasts(study))


def _comparisons(claims: dict[str, Claim]) -> Iterator[tuple[str, Comparison]]:
    for name, claim in claims.items():
        for c in claim.comparisons:
            yield name, c


def _missing(study: Study, matrix: RunMatrix, claim: Claim) -> str:
    """The requirement of the first comparison that the study does not plan; empty if it plans all."""
    return next(filter(None, (lacking(study, matrix, c) for c in claim.comparisons)), "")


def _replicates(study: Study, matrix: RunMatrix, c: Comparison) -> int:
    """The planned number of initial models or common training seeds of a comparison."""
    if c.replicates == STARTS:
        return len(measured_starts(study, study.estimators if c.statistic == "estimator" else study.rounds))
    return len(common_seeds(matrix, c))
