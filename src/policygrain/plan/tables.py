"""Estimates as text: one study in full, several as a Markdown table, and the cost of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..text import columns, markdown_table

if TYPE_CHECKING:
    from ..analysis.power import Spread

GB = 1e9
MEMORY = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "AdamW",
    "gathered": "gathered layers",
    "activations": "activations",
    "output_layer": "output layer",
    "reference": "start policy, while it scores",
    "engine_weights": "engine's weights",
    "engine_cache": "engine's cache",
}


def count(number: float) -> str:
    """A number in short form: 1,234 or 1.2e9."""
    return f"{number:,.0f}" if number < 1e5 else f"{number:.2g}".replace("e+0", "e").replace("e+", "e")


def hours(number: float) -> str:
    """Hours with two significant digits, or as an integer from 100 on."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _devices(estimate: dict[str, Any]) -> str:
    return f"{estimate['gpus']}, {estimate['devices_per_run']} per run"


def detail(estimate: dict[str, Any]) -> str:
    """Everything about one study."""
    header = ["rule", "jobs", "devices", "device-hours", "longest job (h)", "tokens sampled", "tokens trained"]
    rows = [
        [
            rule["rule"],
            str(rule["jobs"]),
            str(rule["devices"]),
            *(hours(rule[key]) for key in ("device_hours", "longest_hours")),
            *(count(rule[key]) for key in ("tokens_sampled", "tokens_trained")),
        ]
        for rule in estimate["rules"]
    ]
    total, device, expected, held = (estimate[key] for key in ("total", "device", "expected", "memory"))
    short = total["jobs"] - sum(rule["jobs"] for rule in estimate["rules"])
    sums = [hours(total["device_hours"]), "", count(total["tokens_sampled"]), count(total["tokens_trained"])]
    rows += [["others, short", str(short), *[""] * 5], ["all", str(total["jobs"]), "", *sums]]

    def fits(yes: bool) -> str:
        return "fits" if yes else "DOES NOT FIT"

    parts = ", ".join(f"{label} {held[key] / GB:.3g}" for key, label in MEMORY.items())
    limit, measuring = device["memory"], estimate["instrument_memory"]
    facts = {
        "wall time": f"{hours(estimate['wall_hours'])} h on {_devices(estimate)}",
        "memory": f"{held['total'] / GB:.3g} GB of {limit / GB:.3g} on each device of a run: {fits(estimate['fits'])}",
        "": f"{parts}; activations are {'recomputed' if estimate['checkpointing'] else 'kept'}; "
        f"{estimate['sequences']} sequences are sampled at once",
        "measuring": f"{measuring / GB:,.3g} GB for estimators and rounds on one device: {fits(measuring <= limit)}",
        "disk": f"{estimate['disk'] / GB:,.3g} GB: checkpoints, models, responses",
        "expected": f"{expected['prompt_tokens']:g} tokens per prompt, {expected['response_tokens']:g} per response, "
        f"{expected['draws']:g} prompts sampled for each that dynamic sampling keeps. {expected['source']}",
        "device": device["source"],
    }
    lines = "\n".join(f"{name:10}  {fact}" for name, fact in facts.items() if measuring or name != "measuring")
    table = "\n".join(columns(rows, header, "lr"))
    source = "measured" if device["measured"] else "assumed, not measured"
    model = f"{estimate['study']}: {estimate['model']}, {count(estimate['parameters'])} parameters"
    return f"{model}\non {device['title']} ({source})\n\n{table}\n\n{lines}\n"


def markdown(estimates: Sequence[dict[str, Any]]) -> str:
    """A row per study."""
    header = ["study", "jobs", "tokens sampled", "tokens trained"]
    header += ["device-hours", "memory per device", "disk", "wall time"]
    rows: list[list[str]] = []
    for estimate in estimates:
        total, how = estimate["total"], ", activations recomputed" if estimate["checkpointing"] else ""
        rows.append(
            [
                estimate["study"],
                str(total["jobs"]),
                count(total["tokens_sampled"]),
                count(total["tokens_trained"]),
                hours(total["device_hours"]),
                f"{estimate['memory']['total'] / GB:.3g} GB{how if estimate['fits'] else ', does not fit'}",
                f"{estimate['disk'] / 1e12:.2g} TB",
                f"{hours(estimate['wall_hours'] / 24)} days on {_devices(estimate)}",
            ]
        )
    return markdown_table(header, rows)


def power(spreads: Sequence[Spread], estimate: dict[str, Any], records: str) -> str:
    """Seeds that decide a comparison, and device-hours of two arms with as many, by effect; Markdown."""
    from ..analysis.power import EFFECTS, POWER, seeds_to_decide

    trained = [rule for rule in estimate["rules"] if rule["rule"].startswith(("train", "evaluate"))]
    per_run = sum(rule["device_hours"] for rule in trained) / max(1, estimate["runs"])
    count = max(1, estimate["comparisons"])
    rows = []
    for spread in spreads:
        cells = []
        for effect in EFFECTS:
            seeds = seeds_to_decide(spread.sd, effect, count)
            most = seeds_to_decide(spread.high, effect, count)
            upper = f"{most}" if most else "over 1,000"
            cells.append(f"{seeds} (to {upper}): {hours(2 * seeds * per_run)} h" if seeds else "over 1,000")
        sd = f"{spread.sd:.1f} [{spread.low:.1f}, {spread.high:.1f}]"
        rows.append([spread.endpoint, str(spread.updates), sd, *cells])
    header = ["endpoint", "updates per batch", "paired sd, points", *(f"{e:g} points" for e in EFFECTS)]
    return markdown_table(header, rows) + (
        f"\nSeeds per arm with which {POWER:.0%} of studies show the direction of a true difference of so many points; "
        f"in brackets at the upper limit of the sd. Holm's correction over {count} comparisons. Hours: both arms "
        f"of {estimate['study']}, {hours(per_run)} device-hours a run with its evaluation. The sd is that of the study "
        f"{records}; that of another model is not known before its first seeds.\n"
    )
