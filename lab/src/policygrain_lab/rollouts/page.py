"""The anatomy of a batch as sentences, a table for the terminal, JSON, and a page that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from torch import Tensor

from policygrain.text import columns

from .anatomy import SAME, Anatomy, clusters

# Smallest cosine of each colour, from dark to light; the last one is that of cosines below 0.
SHADES = (
    (SAME, "#08306b"), (0.99, "#2171b5"), (0.95, "#6baed6"), (0.8, "#9ecae1"), (0.5, "#deebf7"), (0, "#f7fbff"),
    (-2, "#f4a582"),
)  # fmt: skip
CELL = 13  # pixels
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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": _percent, "colour": _colour, "depth": _depth}
    template = environment.from_string((resources.files(__package__) / "anatomy.html").read_text(encoding="utf-8"))
    content = data(anatomy)
    maps = [("Which objectives are the same update", "vectors c", content["cosines"])]
    if anatomy.gradient:
        maps.append(("The same in gradient space", "projected gradients", content["gradient"]["cosines"]))
    return template.render(
        **content,
        title=title,
        size=_counts(anatomy),
        maps=maps,
        left_out_texts=left_out(anatomy),
        longest=max(len(anatomy.names[i]) for i in content["order"]),
        meanings=MEANINGS,
        shades=SHADES,
        cell=CELL,
    )


def _colour(cosine: float) -> str:
    return next(colour for least, colour in SHADES if cosine >= least - 1e-12)


def _depth(share: float | None, usual: float) -> str:
    """Opacity of a cell: 0 up to the usual share, 0.7 from eight times as much on."""
    return f"{0.7 * min(1.0, max(0.0, math.log2(share / usual) / 3)) if share and usual else 0:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.1%}"
