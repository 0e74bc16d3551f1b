"""The anatomy of a batch as sentences, a table for the terminal, JSON, and a page that needs no network."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from html import escape
from typing import Any

from torch import Tensor

from policygrain.text import columns

from .anatomy import SAME, Anatomy, clusters

# Smallest cosine of each colour, from dark to light.
SHADES = ((SAME, "#08306b"), (0.99, "#2171b5"), (0.95, "#6baed6"), (0.8, "#9ecae1"), (0.5, "#deebf7"), (0, "#f7fbff"))
BELOW_0 = "#f4a582"
CELL = 13  # pixels
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5b5b5b; --line: #d9d9d9; --paper: #fff; --blue: 0 114 178; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --soft: #a9a9a9; --line: #444; --paper: #16181a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1rem;
  max-width: 72rem; }
h1 { font-size: 1.6rem; margin: 1rem 0 .4rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .4rem; }
.lead { font-size: 1.1rem; } .note, figcaption { font-size: .88rem; color: var(--soft); max-width: 50rem; }
.wide { overflow-x: auto; } svg text { fill: var(--ink); }
table { border-collapse: collapse; font-size: .78rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .45rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th[colspan] { text-align: center; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
.key { display: inline-block; width: .9em; height: .9em; margin: 0 .25em 0 .8em; border: 1px solid var(--line); }
"""
# Views in the terminal's table, and the index of the label that it shows.
COLUMNS = {"advantage": 0, "position": -1, "length": -1, "turn": -1, "staleness": -1, "entropy": -1}
MEANINGS = {
    "silenced": "tokens with an advantage whose coefficient is 0, such as those that a clip silences",
    "clipped_low": "tokens whose ratio is clipped, or bounded, below",
    "clipped_high": "tokens whose ratio is clipped, or bounded, above",
    "tail": "share of the update that the 1% of tokens with the largest coefficients have",
    "effective_tokens": "(Σ|c|)²/(n Σc²): 100% if all tokens weigh the same",
    "effective_sample_share": "Kish's effective sample size of the ratios over their number",
}


def sentences(anatomy: Anatomy) -> list[str]:
    """Sentences on objectives with the same update, and on those without one."""
    lines = _same(anatomy.names, anatomy.cosines, "On this batch")
    if idle := [name for i, name in enumerate(anatomy.names) if anatomy.cosines[i, i].isnan()]:
        lines.append(f"No update, because the coefficients of all tokens are 0: {', '.join(idle)}.")
    if grads := anatomy.gradient:
        where = f"With the gradients of the model, on {grads['responses']} responses,"
        lines += _same(anatomy.names, grads["cosines"], where)
        lines.append(
            f"Gradients are projected on {grads['directions']} random directions: a cosine x is uncertain by about "
            f"{grads['directions'] ** -0.5:.2g} (1 − x²). It differs from that of the coefficients on these responses "
            f"by {grads['difference']:.2g} at the median of all pairs and {grads['largest']:.2g} at most."
        )
    return lines


def _same(names: Sequence[str], cosines: Tensor, where: str) -> list[str]:
    sets, order = clusters(cosines)
    first, *rest = ([names[i] for i in members] for members in sets)
    if len(first) < 2:
        return [f"{where} no two of these {len(order)} objectives are the same update (cosine ≥ {SAME})."]
    lines = [
        f"{where} {len(first)} of these {len(order)} objectives are the same update (cosine ≥ {SAME} between any two): "
        f"{', '.join(first)}. All together make {len(sets)} different updates."
    ]
    if others := [" = ".join(members) for members in rest if len(members) > 1]:
        lines.append(f"Also the same: {'; '.join(others)}.")
    return lines


def table(anatomy: Anatomy) -> str:
    """The table for the terminal: a row for each objective, similar ones together."""
    sets, order = clusters(anatomy.cosines)
    label = {i: str(number) for number, members in enumerate(sets, start=1) if len(members) > 1 for i in members}
    shown = [(view.labels[k], view, k) for name, k in COLUMNS.items() if (view := anatomy.views.get(name))]
    names = [name for name in COLUMNS if name in anatomy.views]
    turns = [anatomy.views["turn"]] if "turn" in anatomy.views else []
    first = ["(share of tokens)", "", "", *(_percent(view.tokens[k]) for _, view, k in shown), "1.0%", "", ""]
    rows = [[*first, *("" for _ in turns)]]
    for i in order:
        others = [(float(anatomy.cosines[i, j]), anatomy.names[j]) for j in order if j != i]
        closest = "{1} {0:.4f}".format(*max(others)) if others else ""
        shares = [_percent(float(view.update[i, k])) for _, view, k in shown]
        numbers = [_percent(anatomy.numbers[name][i]) for name in ("tail", "silenced", "effective_tokens")]
        numbers += [" ".join(_percent(share) for share in view.silenced[i].tolist()) for view in turns]
        rows.append([anatomy.names[i], label.get(i, ""), closest, *shares, *numbers])
    heads = [f"{name} {text}" for name, (text, _, _) in zip(names, shown, strict=True)]
    header = ["objective", "same", "closest other", *heads, "top 1%", "silenced", "effective"]
    header += [f"silenced by turn: {', '.join(view.labels)}" for view in turns]
    lines = [_counts(anatomy), "", *sentences(anatomy), "", *columns(rows, header, "lllr"), ""]
    lines += ["Share of the update, Σ|c|, by property of its tokens; silenced: tokens with an advantage whose c is 0."]
    lines += [f"note: {note}" for note in anatomy.notes]
    return "\n".join([*lines, *(f"left out: {text}" for text in left_out(anatomy))])


def _counts(anatomy: Anatomy) -> str:
    return ", ".join(f"{count:,} {name if count != 1 else name[:-1]}" for name, count in anatomy.counts.items())


def left_out(anatomy: Anatomy) -> list[str]:
    """`NAMES: reason` for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in anatomy.left_out.items():
        by_reason.setdefault(reason, []).append(name)
    return [f"{'; '.join(names)}: {reason}" for reason, names in by_reason.items()]


def data(anatomy: Anatomy) -> dict[str, Any]:
    """All measurements, as values for JSON; undefined numbers are None."""
    sets, order = clusters(anatomy.cosines)
    views = {name: view._asdict() for name, view in anatomy.views.items()}
    same = [[anatomy.names[i] for i in members] for members in sets]
    extra = {"threshold": SAME, "same": same, "order": order, "sentences": sentences(anatomy), "views": views}
    return _defined(vars(anatomy) | extra)


def _defined(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _defined(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_defined(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(anatomy: Anatomy, title: str) -> str:
    """The anatomy as an HTML page."""
    first, *rest = sentences(anatomy)
    maps = [("Which objectives are the same update", "vectors c", anatomy.cosines)]
    if anatomy.gradient:
        maps.append(("The same in gradient space", "projected gradients", anatomy.gradient["cosines"]))
    parts = [
        f"<h1>Anatomy of {escape(title)}</h1><p class=note>{_counts(anatomy)}</p><p class=lead>{escape(first)}</p>",
        *(f"<p>{escape(line)}</p>" for line in rest),
        *(f"<h2>{head}</h2><figure>{heat_map(anatomy, cosines)}{_legend(of)}</figure>" for head, of, cosines in maps),
        f"<h2>Shares of the update</h2>{_shares(anatomy)}",
        f"<h2>Which tokens are silenced</h2>{_silenced(anatomy)}",
        "<h2>Notes</h2><ul class=note>",
        *(f"<li>{escape(line)}" for line in anatomy.notes),
        *(f"<li>Left out: {escape(line)}." for line in left_out(anatomy)),
        "</ul>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Anatomy of {escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def heat_map(anatomy: Anatomy, cosines: Tensor) -> str:
    """An SVG of the cosines, similar objectives together; a tooltip shows the number of a cell."""
    _, order = clusters(anatomy.cosines)
    left = 9 + 6 * max(len(anatomy.names[i]) for i in order)
    width, cells = left + CELL * len(order), []
    for y, i in enumerate(order):
        name, at = escape(anatomy.names[i]), left + CELL * y
        cells.append(f'<text x="{left - 4}" y="{at + 10}" text-anchor="end">{name}</text>')
        cells.append(f'<text transform="translate({at + 10} {left - 4}) rotate(-90)">{name}</text>')
        for x, j in enumerate(order):
            value = float(cosines[i, j])
            cells.append(
                f'<rect x="{left + CELL * x}" y="{at}" width="{CELL - 1}" height="{CELL - 1}" fill="{_shade(value)}">'
                f"<title>{name}, {escape(anatomy.names[j])}: {value:.4f}</title></rect>"
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {width}" width="{width}" role="img" '
        f'aria-label="cosines" font-family="sans-serif" font-size="10" style="max-width: 100%">{"".join(cells)}</svg>'
    )


def _shade(value: float) -> str:
    return next((colour for least, colour in SHADES if value >= least - 1e-12), BELOW_0)


def _legend(of: str) -> str:
    keys = [(f"≥ {least:g}", colour) for least, colour in SHADES] + [("below 0", BELOW_0)]
    shown = "".join(f'<span class=key style="background: {colour}"></span>{text}' for text, colour in keys)
    return f"<figcaption>Cosine of the {of} of two objectives, whose update is Σ c ∇log π. {shown}</figcaption>"


def _shares(anatomy: Anatomy) -> str:
    """Shares of the update by view; a cell is coloured if its share is above that of the label's tokens."""
    tokens = "".join(f"<td>{_percent(share)}" for view in anatomy.views.values() for share in view.tokens)
    return (
        _table(anatomy, "update", MEANINGS, f"<tr><td>share of tokens{tokens}{'<td>' * len(MEANINGS)}")
        + "<p class=note>Share of Σ|c|, coloured where it is above that of the tokens. "
        + "; ".join(f"{name.replace('_', ' ')}: {escape(text)}" for name, text in MEANINGS.items())
        + ".</p>"
    )


def _silenced(anatomy: Anatomy) -> str:
    """Shares of silenced tokens by view; a cell is coloured where it is above that of all tokens."""
    return (
        _table(anatomy, "silenced", ["silenced"])
        + "<p class=note>Of the tokens with an advantage, the share whose coefficient is 0, such as those that a clip "
        "silences, coloured where it is above that of all tokens. Objectives that silence none are left out.</p>"
    )


def _table(anatomy: Anatomy, field: str, numbers: Collection[str], first: str = "") -> str:
    """A row for each objective: the ``field`` of each view by label, then ``numbers``. ``first``: a row above."""
    over = "".join(f"<th colspan={len(view.labels)}>{name}" for name, view in anatomy.views.items())
    over += f"<th colspan={len(numbers)}>"
    heads = "".join(f"<th>{escape(label)}" for view in anatomy.views.values() for label in view.labels)
    heads += "".join(f'<th title="{escape(MEANINGS[name])}">{name.replace("_", " ")}' for name in numbers)
    rows = []
    for i in clusters(anatomy.cosines)[1]:
        silenced = anatomy.numbers["silenced"][i]
        if field == "silenced" and not silenced:
            continue
        cells = []
        for view in anatomy.views.values():
            for share, of_tokens in zip(getattr(view, field)[i].tolist(), view.tokens, strict=True):
                usual = silenced if field == "silenced" else of_tokens
                shade = min(1.0, max(0.0, math.log2(share / usual) / 3)) if share and usual else 0.0
                cells.append(f'<td style="background: rgb(var(--blue) / {0.7 * shade:.2f})">{_percent(share)}')
        cells += [f"<td>{_percent(anatomy.numbers[name][i])}" for name in numbers]
        rows.append(f"<tr><td>{escape(anatomy.names[i])}{''.join(cells)}")
    return f"<div class=wide><table><thead><tr><th>{over}<tr><th>{heads}<tbody>{first}{''.join(rows)}</table></div>"


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1%}"
