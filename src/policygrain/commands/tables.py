"""Estimates as text: one study in full, several as a Markdown table, and the seeds that a comparison needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..text import columns, markdown_table

if TYPE_CHECKING:
    from ..analysis.verdicts import Spread

GB = 1e9
NUMBERS = ["jobs", "tokens sampled", "scored", "trained", "device-hours"]


def count(number: float) -> str:
    """A number in short form: 1,234 or 1.2e9."""
    return f"{number:,.0f}" if number < 1e5 else f"{number:.2g}".replace("e+0", "e").replace("e+", "e")


def hours(number: float) -> str:
    """Hours with two significant digits, or as an integer from 100 on."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _numbers(part: dict[str, Any]) -> list[str]:
    """The cells of `NUMBERS` for a rule or a study."""
    tokens = (count(part[key]) for key in ("sampled", "scored", "trained"))
    return [str(part["jobs"]), *tokens, hours(part["device_hours"])]


def _wall(estimate: dict[str, Any]) -> str:
    """Wall time in hours, or in days if it is longer than two."""
    wall, where = estimate["wall_hours"], f"on {estimate['gpus']}, {estimate['devices_per_run']} per run"
    return f"{hours(wall / 24)} days {where}" if wall > 48 else f"{hours(wall)} h {where}"


def _memory(estimate: dict[str, Any]) -> str:
    return f"{estimate['memory']['total'] / GB:.3g} GB" + ("" if estimate["fits"] else ", DOES NOT FIT")


def detail(estimate: dict[str, Any]) -> str:
    """The cost of each rule, memory by use, and the assumptions."""
    rows = [[rule["rule"], *_numbers(rule)] for rule in estimate["rules"]]
    table = "\n".join(columns([*rows, ["all", *_numbers(estimate["total"])]], ["rule", *NUMBERS], "lr"))
    device, expected = estimate["device"], estimate["expected"]
    parts = (f"{use} {size / GB:.3g}" for use, size in estimate["memory"].items() if use != "total" and size)
    facts = {
        "wall time": _wall(estimate),
        "memory": f"{_memory(estimate)} of {device['memory'] / GB:.3g} on each device of a run: {', '.join(parts)}",
        "expected": f"{expected['prompt_tokens']:g} tokens per prompt, {expected['response_tokens']:g} per response, "
        f"{expected['draws']:g} prompts sampled for each that dynamic sampling keeps. {expected['source']}",
        "device": device["source"],
    }
    source = "measured" if device["measured"] else "assumed, not measured"
    model = f"{estimate['study']}: {estimate['model']}, {count(estimate['parameters'])} parameters"
    lines = "\n".join(f"{name:10}  {fact}" for name, fact in facts.items())
    return f"{model}\non {device['title']} ({source})\n\n{table}\n\n{lines}\n"


def markdown(estimates: Sequence[dict[str, Any]]) -> str:
    """A row per study."""
    rows = [[e["study"], *_numbers(e["total"]), _memory(e), _wall(e)] for e in estimates]
    return markdown_table(["study", *NUMBERS, "memory per device", "wall time"], rows)


def power(spreads: Sequence[Spread], estimate: dict[str, Any], records: str) -> str:
    """Seeds needed to decide a comparison and device-hours of its two arms, by size of the effect; Markdown."""
    from ..analysis.verdicts import EFFECTS, MOST_SEEDS, POWER, seeds_to_decide

    trained = [rule for rule in estimate["rules"] if rule["rule"].startswith(("train", "evaluate"))]
    per_run = sum(rule["device_hours"] for rule in trained) / max(1, estimate["runs"])
    count, beyond = max(1, estimate["comparisons"]), f"over {MOST_SEEDS:,}"
    rows = []
    for spread in spreads:
        cells = []
        for effect in EFFECTS:
            seeds = seeds_to_decide(spread.sd, effect, count)
            most = seeds_to_decide(spread.high, effect, count)
            upper = f"{most}" if most else beyond
            cells.append(f"{seeds} (to {upper}): {hours(2 * seeds * per_run)} h" if seeds else beyond)
        sd = f"{spread.sd:.1f} [{spread.low:.1f}, {spread.high:.1f}]"
        rows.append([spread.endpoint, str(spread.updates), sd, *cells])
    header = ["endpoint", "updates per batch", "paired sd, points", *(f"{e:g} points" for e in EFFECTS)]
    return markdown_table(header, rows) + (
        f"\nSeeds per arm for {POWER:.0%} power to show the direction of a true difference of this size; in brackets: "
        f"with the upper limit of the sd. Holm's correction for {count} comparison{'s' * (count > 1)}. Hours: both "
        f"arms of {estimate['study']}, {hours(per_run)} device-hours a run with its evaluation. The sd is that of "
        f"the study {records}; another model may have a different one.\n"
    )
