"""Estimates as text: one study in full, or several as a Markdown table."""

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


def _instruments(estimate: dict[str, Any]) -> str:
    if not estimate["instrument_memory"]:
        return "none"
    fits = "fits" if estimate["instrument_memory"] <= estimate["device_memory"] else "DOES NOT FIT"
    return f"{estimate['instrument_memory'] / GB:,.3g} GB for estimators and rounds on one device: {fits}"


def detail(estimate: dict[str, Any]) -> str:
    """Everything about one study."""
    header = ["rule", "jobs", "devices", "device-hours", "longest job (h)", "tokens sampled", "tokens trained"]
    rows: list[list[str]] = []
    for rule in estimate["rules"]:
        rows.append(
            [
                rule["rule"],
                str(rule["jobs"]),
                str(rule["devices"]),
                hours(rule["device_hours"]),
                hours(rule["longest_hours"]),
                count(rule["tokens_sampled"]),
                count(rule["tokens_trained"]),
            ]
        )
    total = estimate["total"]
    sums = [hours(total["device_hours"]), "", count(total["tokens_sampled"]), count(total["tokens_trained"])]
    rows.append(["others, short", str(estimate["jobs_of_seconds"]), "", "", "", "", ""])
    rows.append(["all", str(total["jobs"]), "", *sums])
    device, expected, held, disk = estimate["device"], estimate["expected"], estimate["memory"], estimate["disk"]
    parts = ", ".join(f"{label} {held[key] / GB:.3g}" for key, label in MEMORY.items())
    kept, recomputed = (estimate["activations"][key] / GB for key in ("kept", "computed_again"))
    facts = {
        "wall time": f"{hours(estimate['wall_hours'])} h with {estimate['gpus']} devices, "
        f"{estimate['devices_per_run']} per run",
        "memory": f"{held['total'] / GB:.3g} GB of {estimate['device_memory'] / GB:.3g} on each device of a run: "
        + ("fits" if estimate["fits"] else "DOES NOT FIT"),
        "": f"{parts}; activations are {'recomputed' if estimate['checkpointing'] else 'kept'} "
        f"({kept:.3g} kept, {recomputed:.3g} recomputed); {estimate['sequences']} sequences are sampled at once",
        "measuring": _instruments(estimate),
        "disk": f"{sum(disk.values()) / GB:,.3g} GB: {', '.join(f'{k} {v / GB:,.3g}' for k, v in disk.items())}",
        "expected": f"{expected['prompt_tokens']:g} tokens per prompt, {expected['response_tokens']:g} per response, "
        f"{expected['draws']:g} prompts sampled for each that dynamic sampling keeps. {expected['source']}",
        "device": device["source"],
    }
    lines = "\n".join(f"{name:10}  {fact}" for name, fact in facts.items())
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
        total = estimate["total"]
        how = (
            ", does not fit"
            if not estimate["fits"]
            else ", activations recomputed"
            if estimate["checkpointing"]
            else ""
        )
        cells = [
            estimate["study"],
            str(total["jobs"]),
            count(total["tokens_sampled"]),
            count(total["tokens_trained"]),
            hours(total["device_hours"]),
            f"{estimate['memory']['total'] / GB:.3g} GB{how}",
            f"{sum(estimate['disk'].values()) / 1e12:.2g} TB",
            f"{hours(estimate['wall_hours'] / 24)} days on {estimate['gpus']}, {estimate['devices_per_run']} per run",
        ]
        rows.append(cells)
    return markdown_table(header, rows)


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    """Predicted beside measured seconds."""
    header = ["rule", "phase", "of", "predicted (s)", "measured (s)", "predicted/measured"]
    cells: list[list[str]] = []
    for row in rows:
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        seconds = (f"{row['predicted']:,.1f}", f"{row['measured']:,.1f}")
        cells.append([row["rule"], row["phase"], str(row["of"]), *seconds, ratio])
    return "\n".join(columns(cells, header, "lr")) + "\n"


def power(spreads: Sequence[Spread], estimate: dict[str, Any], records: str) -> str:
    """Seeds that decide a comparison, and device-hours of two arms with as many, by margin; Markdown."""
    from ..analysis.power import MARGINS, POWER, seeds_to_decide

    trained = [rule for rule in estimate["rules"] if rule["rule"].startswith(("train", "evaluate"))]
    each = sum(rule["device_hours"] for rule in trained) / max(1, estimate["runs"])
    count = max(1, estimate["comparisons"])
    rows = []
    for spread in spreads:
        cells = []
        for margin in MARGINS:
            seeds = seeds_to_decide(spread.sd, margin, count)
            most = seeds_to_decide(spread.high, margin, count)
            upper = f"{most}" if most else "over 1,000"
            cells.append(f"{seeds} (to {upper}): {hours(2 * seeds * each)} h" if seeds else "over 1,000")
        sd = f"{spread.sd:.1f} [{spread.low:.1f}, {spread.high:.1f}]"
        rows.append([spread.endpoint, str(spread.updates), sd, *cells])
    header = ["endpoint", "updates per batch", "paired sd, points", *(f"margin {m:g} points" for m in MARGINS)]
    return markdown_table(header, rows) + (
        f"\nSeeds per arm with which {POWER:.0%} of studies find a true difference of twice the margin to exceed it; "
        f"in brackets at the upper limit of the sd. Holm's correction over {count} comparisons. Hours: both arms "
        f"of {estimate['study']}, {hours(each)} device-hours a run with its evaluation. The sd is that of the study "
        f"{records}; that of another model is not known before its first seeds.\n"
    )
