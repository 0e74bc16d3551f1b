"""The abstract of a study: a few sentences, made from its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..results.reader import StudyResults
from .claims import ClaimResult
from .contrasts import Contrast, sentences
from .controls import Control

NONE_HOLDS = "None of the papers' claims is shown."
QUESTION = "At what grain should a policy gradient act on a reasoning model: token, block, prefix or sequence?"


def abstract(
    results: StudyResults,
    claims: Sequence[ClaimResult],
    compared: Sequence[Contrast],
    controls: Sequence[Control],
    label: Callable[[str], str] = str,
) -> list[str]:
    """Sentences on runs, differences in each regime, claims that hold, claims that do not, and controls."""
    return [
        _done(results, label),
        *sentences(results, [c for c in compared if not c.pair.whole], label),
        _in_favour(claims),
        _against(claims),
        _rests_on(results, controls),
    ]


def _done(results: StudyResults, label: Callable[[str], str]) -> str:
    study, matrix = results.study, results.matrix
    methods = list(dict.fromkeys(label(arm.split("+")[0]) for arm in results.arms("headline")))
    seeds = sorted({len(runs) for runs in matrix.by_arm().values()})
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"{_listed(methods)} and variants of them were trained in {len(matrix.runs)} runs, {many} seeds each; runs of "
        f"one seed share their initial model, prompts and sampling seeds ({study.title or study.name})."
    )


def _in_favour(claims: Sequence[ClaimResult]) -> str:
    holding = [_clause(r) for r in claims if r.verdict == "holds"]
    return f"Of the papers' claims, these hold here: {'; '.join(holding)}." if holding else NONE_HOLDS


def _against(claims: Sequence[ClaimResult]) -> str:
    open_ = sum(r.verdict in ("undecided", None) for r in claims)
    rest = f"{open_} of {len(claims)} stay undecided or have no records here"
    texts = [
        f"{begin}: {'; '.join(clauses)}"
        for begin, verdict in (
            ("the opposite is shown of these", "opposite"),
            ("these are smaller than published", "smaller than published"),
        )
        if (clauses := [_clause(r) for r in claims if r.verdict == verdict])
    ]
    return f"Of the papers' claims {'; '.join(texts or ['none is shown to be wrong'])}; {rest}."


def _clause(result: ClaimResult) -> str:
    """The text of a claim as a part of a sentence."""
    text = result.claim.text.rstrip(".")
    return text[0].lower() + text[1:] if text.startswith(("The ", "Of ")) else text


def _rests_on(results: StudyResults, controls: Sequence[Control]) -> str:
    failed, unclear = ([c.role for c in controls if c.outcome == outcome] for outcome in ("failed", "inconclusive"))
    summary = (
        f"Controls failed ({', '.join(failed)}), so none of this can be trusted yet"
        if failed
        else f"No control failed, and the seeds are too few for {', '.join(unclear)}"
        if unclear
        else f"All {len(controls)} controls passed"
        if controls
        else "The study has no controls"
    )
    return (
        f"{summary}; intervals are over training seeds and initial models; a replication outside of them would "
        "contradict a finding, and the results do not extend to larger models or other problems."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names) or "Methods"
