"""Sentences and tables of the map of regimes, from docs/cases_map.json."""

from __future__ import annotations

import statistics
from typing import Any

from .common import block, read, table

LEVEL, SMALL = 0.05, 0.1  # of corrected p-values; points


@block("cases-map")
def cases_map() -> str:
    """The answer in sentences, and how often each method is shown to differ from no ratio."""
    record = _record()
    cells = record["cells"]
    methods = _methods(cells)
    rows = []
    for name, found in methods.items():
        shown = [(m["difference"][0], cell) for m, cell in found if m["p"] < LEVEL]
        gains, losses = ([s for s in shown if s[0] * sign > 0] for sign in (1, -1))
        best, worst = (pick(((m["difference"][0], c) for m, c in found), key=lambda s: s[0]) for pick in (max, min))
        rows.append([name, f"{len(gains)}", f"{len(losses)}", _extreme(*best), _extreme(*worst)])
    header = ["method", "better", "worse", "largest difference", "smallest difference"]
    note = (
        f"Shown to be better or worse than no ratio, of {len(cells)} regimes, corrected over the whole map (Holm). "
        f"{record['seeds']} random problems in each, commit {record['commit'][:7]}."
    )
    return "\n\n".join([_sentences(record, methods), table(header, rows), note])


@block("cases-map-bias")
def cases_map_bias() -> str:
    """Bias, and signal-to-noise at one batch, by age: medians over the rows of the map."""
    cells = _record()["cells"]
    ages = sorted({cell["age"] for cell in cells})
    names = [m["name"] for m in _every(cells[0]) if not m["clip"]]
    rows = []
    for name in names:
        row = [name]
        for key in ("cosine", "bias", "snr"):
            for age in ages:
                values = [
                    m[key][0]
                    for c in cells
                    if c["age"] == age
                    for m in _every(c)
                    if (m["name"], m["clip"]) == (name, None)
                ]
                row.append(f"{statistics.median(values):.2f}")
        rows.append(row)
    drifts = [statistics.median(c["nats"][0] for c in cells if c["age"] == age) for age in ages]
    texts = {"cosine": "cosine", "bias": "relative bias", "snr": "signal-to-noise"}
    header = ["ratio, no clip", *(f"{text}, age {age}" for text in texts.values() for age in ages)]
    drift = ", ".join(f"{nats:.2g} nats per token at age {age}" for age, nats in zip(ages, drifts, strict=True))
    return f"{table(header, rows)}\n\nMedians over the rows of the map. Median drift: {drift}."


def _sentences(record: Any, methods: dict[str, list[tuple[Any, Any]]]) -> str:
    """Where a ratio helps, where a clip helps and where nothing matters; every number is counted here."""
    plain = {found[0][0]["name"]: found for found in methods.values() if found[0][0]["clip"] is None}
    clipped = {found[0][0]["name"]: found for found in methods.values() if found[0][0]["clip"] is not None}

    def shown(name: str, sign: int) -> list[Any]:
        return [cell for m, cell in plain[name] if m["p"] < LEVEL and sign * m["difference"][0] > 0]

    unharmful = [f"the {n} ratio" for n in clipped if shown(n, 1) and not shown(n, -1)]
    harmless = f"Only {' and '.join(unharmful)}" if unharmful else "No ratio"
    counts = "; ".join(f"{n} ratio {len(shown(n, 1))} and {len(shown(n, -1))}" for n in clipped)
    gain, where = max(((m["difference"][0], _where(cell)) for m, cell in plain["token"]), key=lambda x: x[0])
    better, worse = shown("product", 1), shown("product", -1)
    wide = sum(2 * cell["group"] >= cell["length"] for cell in better)
    narrow = sum(2 * cell["group"] < cell["length"] for cell in worse)
    pairs = [(a, b) for name, found in clipped.items() for (a, _), (b, _) in zip(found, plain[name], strict=True)]
    apart = max(abs(a["difference"][0] - b["difference"][0]) for a, b in pairs)
    quiet = [c for c in record["cells"] if all(abs(m["difference"][0]) < SMALL for m in c["methods"])]
    staleness = max(cell["age"] * cell["learning_rate"] for cell in quiet)
    age = max(cell["age"] for cell in record["cells"])
    noise = statistics.median(m["snr"][0] / c["reference"]["snr"][0] for m, c in plain["product"] if c["age"] == age)
    sentences = [
        f"**{harmless} helps in some regimes and harms in none.** Shown to be better and worse than no ratio, "
        f"of {len(record['cells'])} regimes: {counts}. The token ratio gains most, {gain:+.2f} points, at {where}.",
        "**The product helps where the reward depends on many tokens together.** It is shown to be better in "
        f"{len(better)} regimes (in {wide} of them a part of the reward depends on at least half of the response) and "
        f"worse in {len(worse)} (in {narrow} of them on less than half).",
        "**No clip that helps was found.** The rule chose ranges that hardly act: with and without them, results "
        f"differ by at most {apart:.2f} points. Narrow ranges cost reward.",
        f"**Nothing matters** (all differences below {SMALL:g} points) in {len(quiet)} regimes, whose age × learning "
        f"rate is at most {staleness:.2g}.",
        f"**Less bias is not more reward.** The product has no bias, but at age {age} its signal-to-noise ratio is "
        f"{noise:.2f} times that without a ratio (median).",
    ]
    return "\n".join(f"* {sentence}" for sentence in sentences)


def _record() -> Any:
    return read("cases_map", "docs")


def _every(cell: Any) -> list[Any]:
    return [cell["reference"], *cell["methods"]]


def _methods(cells: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Method → its results with their cells."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for cell in cells:
        for m in cell["methods"]:
            clip = f", clip {m['clip'][0]:g} / {m['clip'][1]:g}" if m["clip"] else ""
            found.setdefault(m["name"] + clip, []).append((m, cell))
    return found


def _where(cell: Any) -> str:
    return f"age {cell['age']}, rate {cell['learning_rate']:g}, {cell['length']} tokens, groups of {cell['group']}"


def _extreme(value: float, cell: Any) -> str:
    return f"{value:+.2f} ({_where(cell)})"
