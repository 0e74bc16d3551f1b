"""The questions of this project (`findings.yaml`), answered by a study's records: one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from .claim_text import comparison_text, effect_text
from .claims import ClaimResult, Design, Finding, decide_claims
from .comparisons import compare
from .ledger import Comparison, load_claims

if TYPE_CHECKING:
    from ..results.reader import StudyResults

TIE, OPEN = "no difference larger than the margin", "undecided"


def findings(results: StudyResults) -> list[ClaimResult]:
    """The answers, decided as the claims of the papers are, in a ledger of their own."""
    with resources.as_file(resources.files(__package__).joinpath("findings.yaml")) as path:
        questions = load_claims(Path(path))
    design: Design = "sequential" if results.study.sequential else "fixed"
    return decide_claims(questions, lambda c: compare(results, c), design, [i.add for i in results.interims])


def answer(result: ClaimResult, label: Callable[[str], str] = str) -> str:
    """A question with its answer as one sentence: what differs, by how much and how sure; ``label`` names arms."""
    if not result.findings:
        return f"{result.claim.text} No records."
    pairs = list(zip(result.claim.comparisons, result.findings, strict=True))
    groups = {verdict: [pair for pair in pairs if pair[1].verdict == verdict] for verdict in ("supported", TIE, OPEN)}
    said = []
    if groups["supported"]:
        said.append(f"Yes: {_listed(groups['supported'], label)}.")
    if groups[TIE]:
        names = ", ".join(f"{label(c.of)} and {label(c.than)} ({_what(c)})" for c, _ in groups[TIE])
        said.append(f"{'No, not' if len(groups[TIE]) == len(pairs) else 'Not'} beyond the margin: {names}.")
    apart = [pair for pair in groups[OPEN] if pair[1].low > 0 or pair[1].high < 0]
    if apart:
        said.append(f"Different, but not shown to be beyond the margin: {_listed(apart, label)}.")
    if rest := [pair for pair in groups[OPEN] if pair not in apart]:
        effects = sorted(f.effect for _, f in rest)
        between = f"{effects[0]:+.1f}" + (f" to {effects[-1]:+.1f}" if len(rest) > 1 else "")
        said.append(
            f"No difference shown in {len(rest)} of {len(pairs)} comparisons, whose effects are {between} points."
        )
    return f"{result.claim.text} {' '.join(said)}"


def _listed(pairs: Sequence[tuple[Comparison, Finding]], label: Callable[[str], str]) -> str:
    """Effects with their intervals and units, for example `block − token +3 [+2, +4] points (…, 8 start models)`."""
    plain = (f._replace(verdict="supported") for _, f in pairs)  # without how many seeds would decide
    return "; ".join(
        f"{label(c.of)} − {label(c.than)} {effect_text(c, f)} ({_what(c)}, {f.n} {f.unit})"
        for (c, _), f in zip(pairs, plain, strict=True)
    )


def answers_text(found: Sequence[ClaimResult], label: Callable[[str], str] = str) -> str:
    """All answers, a line each."""
    return "\n".join(answer(result, label) for result in found)


def _what(comparison: Comparison) -> str:
    """What was compared, without the names of the arms."""
    return comparison_text(comparison).split(":")[0]
