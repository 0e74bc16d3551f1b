"""The abstract of a study: five sentences, made from its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..results.reader import StudyResults
from .claim_text import effect_text, margin_text
from .claims import ClaimResult
from .controls import Control

QUESTION = "At what grain should a policy gradient act on a reasoning model: token, block, prefix or sequence?"


def abstract(
    results: StudyResults,
    claims: Sequence[ClaimResult],
    findings: Sequence[ClaimResult],
    controls: Sequence[Control],
    label: Callable[[str], str] = str,
) -> list[str]:
    """What was done, what the grain changes, which claims hold, which do not, and what the results rest on."""
    return [
        _done(results, label),
        _grain(findings, label),
        _with_verdict(
            claims, "supported", "Of the papers' claims, these hold here", "None of the papers' claims is shown"
        ),
        _not_supported(claims),
        _rests_on(results, controls),
    ]


def _done(results: StudyResults, label: Callable[[str], str]) -> str:
    study, matrix = results.study, results.matrix
    methods = list(dict.fromkeys(label(arm.split("+")[0]) for arm in results.arms("headline")))
    seeds = sorted({len(runs) for runs in matrix.by_arm().values()})
    many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    return (
        f"{_listed(methods)} and variants of them were trained in {len(matrix.runs)} runs, {many} seeds each; runs of "
        f"one seed share their start model, prompts and sampling seeds ({study.title or study.name})."
    )


def _grain(findings: Sequence[ClaimResult], label: Callable[[str], str]) -> str:
    """Of all comparisons of ratios and clip ranges: how many differ, and that with the smallest p-value."""
    pairs = [pair for r in findings for pair in zip(r.claim.comparisons, r.findings, strict=False)]
    if not pairs:
        return "The study has no records that compare grains with each other."
    decided = [pair for pair in pairs if pair[1].verdict == "supported"]
    ties = sum(f.verdict == "no difference larger than the margin" for _, f in pairs)
    rest = f"{ties} are equal within it and {len(pairs) - len(decided) - ties} undecided"
    asked = f"Of {len(pairs)} comparison{'s' * (len(pairs) > 1)} of ratios and clip ranges,"
    if not decided:
        return f"{asked} none is shown to differ by more than its margin: {rest}."
    c, f = min(decided, key=lambda pair: pair[1].p.supports)
    return (
        f"{asked} {len(decided)} differ by more than the margin, with the smallest p-value for {label(c.of)} − "
        f"{label(c.than)}: {effect_text(c, f)} (margin {margin_text(c)}); {rest}."
    )


def _with_verdict(claims: Sequence[ClaimResult], verdict: str, begin: str, none: str) -> str:
    texts = [_clause(r) for r in claims if r.verdict == verdict]
    return f"{begin}: {'; '.join(texts)}." if texts else f"{none}."


def _not_supported(claims: Sequence[ClaimResult]) -> str:
    open_ = sum(r.verdict in ("undecided", None) for r in claims)
    rest = f"{open_} of {len(claims)} stay undecided or have no records here"
    texts = [_clause(r) for r in claims if r.verdict not in ("supported", "undecided", None)]
    return f"Not supported: {'; '.join(texts)}; {rest}." if texts else f"No claim is refuted; {rest}."


def _clause(result: ClaimResult) -> str:
    """The text of a claim as a part of a sentence."""
    text = result.claim.text.rstrip(".")
    return text[0].lower() + text[1:] if text.startswith(("The ", "Of ")) else text


def _rests_on(results: StudyResults, controls: Sequence[Control]) -> str:
    failed = [c.role for c in controls if not c.passed]
    said = (
        f"Controls failed ({', '.join(failed)}), so none of this can be trusted yet"
        if failed
        else f"All {len(controls)} controls passed"
        if controls
        else "The study has no controls"
    )
    return (
        f"{said}; intervals are over training seeds and start models, a replication outside of them would contradict a "
        "finding, and the results do not extend to larger models or other problems."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names) or "Methods"
