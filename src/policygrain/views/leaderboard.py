"""Several evaluated models in one Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis import Estimate, accuracy
from ..analysis.model_comparison import average
from ..results.evaluated_models import ModelGroup, benchmarks_of
from ..text import markdown_table


def leaderboard(groups: Sequence[ModelGroup]) -> str:
    """Markdown: a row per model, best average first, accuracies in % with 95% intervals."""
    benchmarks = benchmarks_of(groups)
    several = len(benchmarks) > 1
    rows = []
    for group in groups:
        whole = average(group, benchmarks) if several else None
        each = [_cell(accuracy([group.scores(b)]) if group.records(b) else None) for b in benchmarks]
        order = whole.mean if whole else accuracy([group.scores(benchmarks[0])]).mean
        rows.append((order, [group.name, *([_cell(whole)] if several else []), *each]))
    rows.sort(key=lambda row: -row[0])
    return markdown_table(["model", *(["average"] if several else []), *benchmarks], [cells for _, cells in rows], "lr")


def _cell(found: Estimate | None) -> str:
    return "–" if found is None else f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
