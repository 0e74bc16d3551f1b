"""The questions of this project (`findings.yaml`), answered by a study's records: one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ..study.runs import run_matrix
from .claim_text import comparison_text, effect_text
from .claims import ClaimResult, Finding, decide_claims
from .comparisons import compare, lacking
from .ledger import Claim, Comparison, load_claims

if TYPE_CHECKING:
    from ..results.reader import StudyResults
    from ..study import Study

Pair = tuple[Comparison, Finding]
TIE, OPEN = "no difference larger than the margin", "undecided"


def findings(results: StudyResults) -> list[ClaimResult]:
    """The answers, decided as the claims of the papers are, in a ledger of their own."""
    return decide_claims(planned_questions(results.study), lambda c: compare(results, c))


def planned_questions(study: Study) -> dict[str, Claim]:
    """The questions with the comparisons that ``study`` plans; with all of them where it plans none."""
    with resources.as_file(resources.files(__package__).joinpath("findings.yaml")) as path:
        questions = load_claims(Path(path))
    matrix, found = run_matrix(study), {}
    for name, question in questions.items():
        planned = [c for c in question.comparisons if lacking(study, matrix, c) is None]
        found[name] = question.model_copy(update={"comparisons": planned or question.comparisons})
    return found


def answer(result: ClaimResult, label: Callable[[str], str] = str) -> str:
    """A question with its answer: what differs, what does not, by how much and how sure; ``label`` names arms."""
    if not result.findings:
        return f"{result.claim.text} No records."
    pairs = list(zip(result.claim.comparisons, result.findings, strict=True))
    groups = {verdict: [pair for pair in pairs if pair[1].verdict == verdict] for verdict in ("supported", TIE, OPEN)}
    said = []
    if groups["supported"]:
        said.append(f"Yes: {_listed(groups['supported'], label)}.")
    if groups[TIE]:
        no = "No, not" if len(groups[TIE]) == len(pairs) else "Not"
        said.append(f"{no} beyond the margin in {_named(groups[TIE], len(pairs), label)}.")
    apart = [pair for pair in groups[OPEN] if pair[1].low > 0 or pair[1].high < 0]
    if apart:
        said.append(f"Inconclusive after correction (uncorrected 95% intervals exclude 0): {_listed(apart, label)}.")
    if rest := [pair for pair in groups[OPEN] if pair not in apart]:
        said.append(f"No difference shown in {_named(rest, len(pairs), label)}.")
    return f"{result.claim.text} {' '.join(said)}"


def _named(pairs: Sequence[Pair], count: int, label: Callable[[str], str]) -> str:
    """Comparisons by name, with the range of their effects: `2 of 9 comparisons (-0.3 to +0.1 points): a − b; …`."""
    effects = sorted(f.effect for _, f in pairs)
    between = f"{effects[0]:+.1f}" + (f" to {effects[-1]:+.1f}" if len(effects) > 1 else "")
    names = "; ".join(f"{label(c.of)} − {label(c.than)}" for c, _ in pairs)
    return f"{len(pairs)} of {count} comparisons ({between} points): {names}"


def _listed(pairs: Sequence[Pair], label: Callable[[str], str]) -> str:
    """Effects with intervals, by what was measured: `a − b +3 [+2, +4], … points (one round, …, 8 start models)`."""
    groups: dict[tuple[str, float, str], list[Pair]] = {}
    for c, f in pairs:
        groups.setdefault((comparison_text(c).split(":")[0], c.margin, f.unit), []).append((c, f))
    said = []
    for (what, margin, unit), own in groups.items():
        plain = [(c, f._replace(verdict="supported")) for c, f in own]  # without how many seeds would decide
        effects = [f"{label(c.of)} − {label(c.than)} {effect_text(c, f).removesuffix(' points')}" for c, f in plain]
        numbers = sorted({f.n for _, f in own})
        many = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
        said.append(f"{', '.join(effects)} points ({what}, margin {margin:g}, {many} {unit})")
    return "; ".join(said)


def answers_text(found: Sequence[ClaimResult], label: Callable[[str], str] = str) -> str:
    """All answers, a line each."""
    return "\n".join(answer(result, label) for result in found)
