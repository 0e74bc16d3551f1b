"""Interim analyses: which claims are undecided, whether the budget can decide them, and the seeds that are added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from ..results.measured import InterimRecord
from ..results.reader import StudyResults
from ..study import Study
from .claim_text import comparison_text
from .claims import ClaimResult, decide_study
from .findings import findings
from .statistics import STARTS
from .verdicts import MOST_SEEDS

if TYPE_CHECKING:
    from .claims import Finding
    from .ledger import Comparison

WITHIN = "within the budget"
LENIENCE = 2.0  # by this factor an estimate of minutes may be wrong


class Outlook(NamedTuple):
    """What it would take to decide an undecided claim."""

    comparisons: list[Comparison]  # those that could decide it, if more seeds are added; empty: seeds cannot
    minutes: float  # projected, summed over processes
    text: str


def interim(results: StudyResults, number: int) -> InterimRecord:
    """The interim analysis after ``number`` rounds of added seeds, a function of the records of these rounds alone.

    Seeds are added to the arms of claims that are undecided and that the budget can still decide. UserError for a study
    without `sequential`, or if an earlier analysis is missing.
    """
    plan = results.study.sequential
    if plan is None:
        raise UserError(f"{results.folder.path}: the study has no `sequential`, so no seeds are added to it.")
    if len(results.interims) < number:
        raise UserError(f"{results.folder.path}: interim analysis {number} comes after {number - 1}, which is missing.")
    earlier = StudyResults(results.folder.path, results.study)
    earlier.interims = results.interims[:number]
    decided = decisions(earlier)
    spent, each = minutes_spent(earlier), minutes_per_run(earlier)
    seeds = _seeds_by_arm(earlier)
    left = max(0.0, plan.budget - spent)
    undecided: dict[str, str] = {}
    affordable: dict[str, Outlook] = {}
    for claim in decided:
        if claim.verdict is None:
            undecided[claim.name] = f"{claim.outcome}: {claim.missing}"
        elif claim.verdict == "undecided":
            outlook = outlook_of(claim, seeds, each, plan.add)
            undecided[claim.name] = outlook.text
            if outlook.comparisons and outlook.minutes <= left:
                affordable[claim.name] = outlook
                undecided[claim.name] = f"{WITHIN}: {outlook.text}"
            elif outlook.comparisons:
                undecided[claim.name] = f"futile: {outlook.text}, and {left:.1f} minutes are left"
    add = next_round(affordable.values(), seeds, each, plan.add, left)
    what = "comparison" if "findings" in plan.ledgers else "claim"
    reason = _reason(add, undecided, _minutes(add, each), what)
    if affordable and number >= plan.max_rounds:
        add, reason = {}, f"No seeds are added: {number} of at most {plan.max_rounds} rounds have been added."
    elif affordable and not add:
        reason = f"No seeds are added: the next round does not fit into the {left:.1f} of {plan.budget:g} minutes left."
    verdicts = {claim.name: str(claim.verdict) for claim in decided if claim.name not in undecided}
    return InterimRecord(
        number=number,
        decided=verdicts,
        undecided=undecided,
        add=add,
        reason=reason,
        minutes=round(spent, 3),
        budget=plan.budget,
    )


def decisions(results: StudyResults) -> list[ClaimResult]:
    """What the study's seeds are to decide: the claims, and each comparison of the findings as a claim of its own."""
    plan = results.study.sequential
    ledgers = plan.ledgers if plan else ()
    found = decide_study(results) if "claims" in ledgers else []
    for question in findings(results) if "findings" in ledgers else []:
        if question.verdict is None:
            found.append(question)
        for c, finding in zip(question.claim.comparisons, question.findings, strict=False):
            alone = question.claim.model_copy(update={"comparisons": [c]})
            found.append(ClaimResult(f"{question.name}: {comparison_text(c)}", alone, [finding], finding.verdict))
    return found


def minutes_spent(results: StudyResults) -> float:
    """Minutes of training and evaluation of all runs so far, summed over processes, without the time to start them."""
    return sum(_seconds_by_run(results).values()) / 60


def minutes_per_run(results: StudyResults) -> dict[str, float]:
    """Minutes of training and evaluation of a run of each arm: the mean of its runs, else that of all runs."""
    spent = _seconds_by_run(results)
    if not spent:
        raise UserError(f"{results.folder.path}: no run has ended yet. Run `snakemake all`.")
    by_arm: dict[str, list[float]] = {}
    for name, seconds in spent.items():
        by_arm.setdefault(name.rpartition("/")[0], []).append(seconds / 60)
    overall = sum(spent.values()) / len(spent) / 60
    return {arm: sum(own) / len(own) if (own := by_arm.get(arm)) else overall for arm in results.matrix.arms}


def _seconds_by_run(results: StudyResults) -> dict[str, float]:
    evaluations = results.model_evaluations
    spent = {run.name: summary.final.seconds for run, summary in results.summaries.items()}
    return {
        name: seconds + (sum(evaluations[name].facts.seconds.values()) if name in evaluations else 0.0)
        for name, seconds in spent.items()
    }


def outlook_of(claim: ClaimResult, seeds: Mapping[str, Sequence[int]], each: Mapping[str, float], add: int) -> Outlook:
    """What deciding a claim would take if effects and spreads stayed as they are.

    One comparison against it is enough, so that the cheapest of those that point against it counts; it is supported
    only by all. ``seeds`` and ``each``: seeds and minutes per run, by arm; ``add``: seeds in a round.
    """
    still = [(c, f) for c, f in zip(claim.claim.comparisons, claim.findings, strict=True) if f.verdict == "undecided"]
    by_seeds = [(c, f) for c, f in still if f.unit != STARTS]
    if not by_seeds:
        return Outlook([], 0.0, "measured on start models, whose number is planned; more seeds do not decide it")
    against = [(_cost([(c, f)], seeds, each, add), c, f) for c, f in by_seeds if _points_against(c, f)]
    if against:
        cost, c, f = min(against, key=lambda found: found[0])
        return Outlook([c], cost, _needed(f.seeds_needed, cost))
    if len(by_seeds) < len(still):
        return Outlook([], 0.0, "its comparisons on start models are undecided; seeds could not show that it holds")
    cost = _cost(by_seeds, seeds, each, add)
    known = [f.seeds_needed for _, f in by_seeds]
    largest = None if None in known else max(n for n in known if n is not None)
    return Outlook([c for c, _ in by_seeds], cost, _needed(largest, cost))


def _points_against(c: Comparison, f: Finding) -> bool:
    """Whether the effect so far is smaller than the margin on the claimed side."""
    size = {"above": f.effect, "below": -f.effect, "apart": abs(f.effect)}[c.claimed]
    return f.n >= 2 and size < c.margin


def _cost(
    pairs: Sequence[tuple[Comparison, Finding]],
    seeds: Mapping[str, Sequence[int]],
    each: Mapping[str, float],
    add: int,
) -> float:
    """Minutes until all these comparisons are decided; a run that several of them need counts once."""
    runs: dict[str, int] = {}
    for c, f in pairs:
        for arm, new in seeds_to_add([c], seeds, _more(f, add)).items():
            runs[arm] = max(runs.get(arm, 0), len(new))
    return sum(count * each[arm] for arm, count in runs.items())


def _more(f: Finding, add: int) -> int:
    """How many more seeds decide a comparison; with a single seed nothing is known, and a round is the least."""
    if f.n < 2:
        return add
    return MOST_SEEDS if f.seeds_needed is None else max(add, f.seeds_needed - f.n)


def _needed(seeds: int | None, minutes: float) -> str:
    about = f"about {seeds} seeds" if seeds else f"an unknown number of seeds, or over {MOST_SEEDS:,},"
    return f"{about} would decide it, {minutes:.1f} minutes"


def seeds_to_add(
    comparisons: Iterable[Comparison], seeds: Mapping[str, Sequence[int]], add: int
) -> dict[str, list[int]]:
    """Arm → seeds to add: those after its highest one, until all arms that are compared end with the same seed.

    The arm with the highest seed gets ``add`` of them, one that lags behind it more.
    """
    pairs = [(c.of, c.than) for c in comparisons]
    top = {arm: max(seeds[arm]) for pair in pairs for arm in pair}
    while any(top[one] != top[two] for one, two in pairs):
        for one, two in pairs:
            top[one] = top[two] = max(top[one], top[two])
    return {arm: list(range(max(seeds[arm]) + 1, last + add + 1)) for arm, last in top.items()}


def next_round(
    affordable: Iterable[Outlook],
    seeds: Mapping[str, Sequence[int]],
    each: Mapping[str, float],
    add: int,
    left: float,
) -> dict[str, list[int]]:
    """Arm → seeds to add, for as many of these outlooks as fit into the minutes ``left``, the cheapest first."""
    wanted: list[Comparison] = []
    for outlook in sorted(affordable, key=lambda found: found.minutes):
        more = [*wanted, *outlook.comparisons]
        if _minutes(seeds_to_add(more, seeds, add), each) <= left:
            wanted = more
    return seeds_to_add(wanted, seeds, add)


def check_budget(study: Study, minutes: float) -> None:
    """UserError if the budget for seeds is smaller than what the planned runs take.

    ``minutes`` is an estimate for all planned runs with their evaluation; it may be too large by a factor of two.
    """
    plan = study.sequential
    if plan is not None and minutes > LENIENCE * plan.budget:
        raise UserError(
            f"sequential.budget: {plan.budget:g} minutes, and the planned runs alone take about {minutes:.0f}: no seed "
            "could be added. Raise the budget, or plan fewer seeds or arms."
        )


def _seeds_by_arm(results: StudyResults) -> dict[str, list[int]]:
    return {arm: [run.seed for run in runs] for arm, runs in results.matrix.by_arm().items()}


def _minutes(add: Mapping[str, Sequence[int]], each: Mapping[str, float]) -> float:
    return sum(len(more) * each[arm] for arm, more in add.items())


def _reason(add: Mapping[str, Sequence[int]], undecided: Mapping[str, str], cost: float, what: str) -> str:
    if add:
        count = sum(len(more) for more in add.values())
        of = sum(why.startswith(WITHIN) for why in undecided.values())
        many = f"1 undecided {what}" if of == 1 else f"{of} undecided {what}s"
        return f"{count} runs of {len(add)} arms are added for {many}, about {cost:.1f} minutes."
    if undecided:
        return f"No seeds are added: the {what}s that are undecided have no records, or more seeds do not decide them."
    return f"No seeds are added: all {what}s are decided."
