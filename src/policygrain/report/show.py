"""Evaluations in the terminal: one model in detail, or several side by side, at most `WIDTH` characters wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..analysis import Difference, Estimate
from ..analysis.evaluated_models import ModelGroup, benchmarks_of
from ..analysis.model_comparison import accuracy, average, difference, summary
from ..text import columns, markdown_table, shortened

WIDTH = 100  # characters
Column = tuple[str, list[str]]  # a heading, and a cell per row


def detail(group: ModelGroup) -> str:
    """Scores and outcomes of one group, a line per benchmark, and the protocol."""
    benchmarks = benchmarks_of([group])
    rows = [summary(group, b) for b in benchmarks]
    ks = sorted({k for row in rows for k in row["pass_at"]})
    scores: list[Column] = [
        ("n", [str(row["n"]) for row in rows]),
        ("problems", [str(row["problems"]) for row in rows]),
        ("accuracy", [_cell(Estimate(**row["accuracy"])) for row in rows]),
        *((f"pass@{k}", [_percent(row["pass_at"].get(k)) for row in rows]) for k in ks),
        ("maj@n", [_percent(row["majority"]) for row in rows]),
    ]
    kinds = dict.fromkeys(kind for row in rows for kind in row["outcomes"])
    outcomes: list[Column] = [
        *((kind, [str(row["outcomes"].get(kind, 0)) for row in rows]) for kind in kinds),
        ("truncated", [_percent(row["truncated"]) for row in rows]),
        ("tokens", [f"{row['tokens']:.1f}" for row in rows]),
    ]
    over = rows[0]["accuracy"]["unit"]
    whole = average(group, benchmarks) if len(benchmarks) > 1 else None
    named = [shortened(b, 24) for b in benchmarks]
    return _text(
        [
            shortened(group.name, WIDTH - 20)
            + (f", seeds {', '.join(m.seed for m in group.models)}" if len(group.models) > 1 else ""),
            "",
            f"Scores in %, 95% intervals over {over}; n responses per problem.",
            *_table(("benchmark", named), scores),
            *([f"Average of the benchmarks: {_cell(whole).strip()}", ""] if whole else []),
            "Responses by outcome; % of them truncated; tokens per response.",
            *_table(("benchmark", named), outcomes),
            *protocol([group]),
        ]
    )


def overview(groups: Sequence[ModelGroup], first: ModelGroup, differing: Sequence[str]) -> str:
    """A line per group: the average accuracy, its paired difference to ``first``, then as many benchmarks as fit."""
    benchmarks = benchmarks_of(groups)
    several = len(benchmarks) > 1
    table: list[Column] = [("", [shortened(e.name, 34) for e in groups])]
    if any(len(e.models) > 1 for e in groups):
        table.append(("seeds", [str(len(e.models)) for e in groups]))
    means = [average(e, benchmarks) if several else accuracy(e, benchmarks[:1]) for e in groups]
    table.append(("average" if several else "accuracy", [_cell(a) if a else "" for a in means]))
    apart = [difference(e, first, benchmarks) for e in groups]
    table.append((f"− {shortened(first.name, 24)}", [_cell(d, "+") if d else "" for d in apart]))
    left_out: list[str] = []
    for b in benchmarks if several else ():
        column = (shortened(b, 9), [_percent(accuracy(e, [b]).mean) if e.records(b) else "" for e in groups])
        if left_out or max(map(len, _lines([*table, column]))) > WIDTH:
            left_out.append(b)
        else:
            table.append(column)
    text = ["Accuracy in %, 95% intervals; * the interval of a paired difference, not corrected, excludes 0.", ""]
    text += _warning(differing)
    whose = f"{len(left_out)} more benchmarks, their" if left_out else "The benchmarks'"
    return _text([*text, *_lines(table), "", f"{whose} intervals and differences, and the protocol: --all"])


def comparison(groups: Sequence[ModelGroup], first: ModelGroup, differing: Sequence[str]) -> str:
    """The accuracy of each group and its paired difference to ``first``, in a block per benchmark."""
    benchmarks = benchmarks_of(groups)
    blocks: list[tuple[str, list[tuple[ModelGroup, Estimate, Difference | None]]]] = []
    for b in benchmarks:
        there = [e for e in groups if e.records(b)]
        sizes = {f"{r.problems} problems, n = {r.n}" for e in there for r in e.records(b).values()}
        rows = [(e, accuracy(e, [b]), difference(e, first, [b])) for e in there]
        blocks.append((f"{b}: {' or '.join(sorted(sizes))}", rows))
    if len(benchmarks) > 1:
        averages = [(e, average(e, benchmarks)) for e in groups]
        whole = [(e, a, difference(e, first, benchmarks)) for e, a in averages if a]
        blocks.append(("average of the benchmarks", whole))
    every = [row for _, rows in blocks for row in rows]
    several = any(len(e.models) > 1 for e in groups)
    table: list[Column] = [
        ("", [shortened(e.name, 34) for e, _, _ in every]),
        *([("seeds", [str(len(e.models)) for e, _, _ in every])] if several else []),
        ("accuracy", [_cell(a) for _, a, _ in every]),
        (f"− {shortened(first.name, 24)}", [_cell(d, "+") if d else "" for _, _, d in every]),
    ]
    heading, *lines = _lines(table)
    over = " or ".join(dict.fromkeys(part.unit for _, *parts in every for part in parts if part))
    text = [
        f"Accuracy in %, 95% intervals over {over}.",
        f"− {shortened(first.name, 24)}: paired difference; * its interval (not corrected) excludes 0.",
        "",
        *_warning(differing),
    ]
    for name, rows in blocks:
        if rows:
            text += [name, f"  {heading}", *(f"  {lines.pop(0)}" for _ in rows), ""]
    return _text(text + protocol(groups))


def leaderboard(groups: Sequence[ModelGroup]) -> str:
    """Markdown: a row per model, best average first, accuracies in % with 95% intervals."""
    benchmarks = benchmarks_of(groups)
    several = len(benchmarks) > 1
    rows = []
    for group in groups:
        whole = average(group, benchmarks) if several else None
        scores = [_cell(accuracy(group, [b])).strip() if group.records(b) else "–" for b in benchmarks]
        order = whole or accuracy(group, benchmarks_of([group])[:1])
        rows.append((order.mean, [group.name, *([_cell(whole).strip() if whole else "–"] if several else []), *scores]))
    rows.sort(key=lambda row: -row[0])
    return markdown_table(["model", *(["average"] if several else []), *benchmarks], [cells for _, cells in rows], "lr")


def protocol(groups: Sequence[ModelGroup]) -> list[str]:
    """The evaluation protocol of the first model, and all machines and versions that were used."""
    models = [m for e in groups for m in e.models]
    first = models[0].protocol
    benchmarks = {k: v for k, v in first.get("benchmarks", {}).items() if k in benchmarks_of(groups)}
    facts = [(key, str(value)) for key, value in first.items() if key not in ("model", "benchmarks")]
    samplings: dict[str, list[str]] = {}
    for name, settings in benchmarks.items():
        samplings.setdefault(_fact(settings.get("sampling", {})), []).append(name)
    for text, names in samplings.items():
        facts.append(("sampling", text + (f" ({', '.join(names)})" if len(samplings) > 1 else "")))
    facts.append(("problems", ", ".join(f"{name}={b.get('problems', '')}" for name, b in benchmarks.items())))
    if len(models) <= 6:  # more than these are in --json only
        facts.append(("model", ", ".join(str(m.protocol["model"]) for m in models if "model" in m.protocol)))
    for key in ("hardware", "versions"):
        kinds = dict.fromkeys(_fact(getattr(m.facts, key)) for m in models)
        facts += [(key if len(kinds) == 1 else f"{key} {i}", kind) for i, kind in enumerate(kinds, start=1)]
    if len(models) == 1:
        facts.append(("seconds", _fact(models[0].facts.seconds)))
    facts = [(key, text) for key, text in facts if text]
    width = max((len(key) for key, _ in facts), default=0)
    lines = ["Protocol" if len(groups) == 1 else f"Protocol of {shortened(groups[0].name, WIDTH - 12)}"]
    for key, text in facts:
        parts = textwrap.wrap(text, WIDTH - width - 4, break_on_hyphens=False)
        lines += [f"  {'' if i else key:{width}}  {part}" for i, part in enumerate(parts)]
    return lines


def _table(names: Column, others: Sequence[Column]) -> list[str]:
    """The columns beside the rows' names; columns that do not fit go into another table below."""
    tables: list[list[Column]] = [[names]]
    for column in others:
        if len(tables[-1]) > 1 and max(map(len, _lines([*tables[-1], column]))) > WIDTH:
            tables.append([names])
        tables[-1].append(column)
    return [line for table in tables for line in [*_lines(table), ""]]


def _lines(table: Sequence[Column]) -> list[str]:
    """The heading and a line per row. Names and intervals are aligned left, by their padded mean; numbers right."""
    align = "".join(
        "l" if i == 0 or any("[" in cell for cell in (heading, *cells)) else "r"
        for i, (heading, cells) in enumerate(table)
    )
    rows = list(zip(*(cells for _, cells in table), strict=True))
    return columns(rows, [heading for heading, _ in table], align)


def _warning(differing: Sequence[str]) -> list[str]:
    """Warning that the protocols differ, with the differences; empty if they do not."""
    parts = [(i, part) for line in differing for i, part in enumerate(textwrap.wrap(line, WIDTH - 4))]
    head = "THE PROTOCOLS DIFFER; differences in accuracy may come from that:"
    return [head, *(f"  {'  ' * (i > 0)}{part}" for i, part in parts), ""] if differing else []


def _text(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _cell(i: Estimate | Difference, sign: str = "") -> str:
    mark = " *" if sign and not i.low <= 0 <= i.high else ""
    return f"{100 * i.mean:{sign}5.1f} [{100 * i.low:{sign}.1f}, {100 * i.high:{sign}.1f}]{mark}"


def _fact(value: object) -> str:
    """A fact as text, a mapping as a list; long fractions rounded."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_fact(v)}" for k, v in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
