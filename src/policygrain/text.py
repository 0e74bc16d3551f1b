"""Text for people: tables for the terminal and in Markdown, lists of names, addresses without credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

GAP = "  "  # between two columns


def columns(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None, align: str = "") -> list[str]:
    """Lines of a table with aligned columns, the header first; lines do not end with spaces.

    ``align`` has one letter per column, "l" for left and "r" for right; the last letter applies to all further columns.
    Columns are left-aligned by default.
    """
    table = [header, *rows] if header is not None else list(rows)
    if not table:
        return []
    sides = _sides(align, len(table[0]))
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return [
        GAP.join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in table
    ]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """A Markdown table that ends with a line break. ``align`` is as in `columns`; pipes in cells are escaped."""
    sides = _sides(align, len(header))
    rule = "|" + "|".join("---:" if side == "r" else "---" for side in sides) + "|"
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows))
    return "\n".join([head, rule, *body]) + "\n"


LATEX = str.maketrans(
    {symbol: f"\\{symbol}" for symbol in "&%_#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "±": r"$\pm$"}
    | {"φ": r"$\varphi$", "λ": r"$\lambda$", "π": r"$\pi$", "ε": r"$\varepsilon$", "\u00a0": "~"}
)


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """The same table for LaTeX with the package booktabs; cells are bold as in Markdown, `**50.0**`."""

    def line(cells: Sequence[str]) -> str:
        minus = (re.sub(r"(?<![\w-])-(?=\d)", "−", cell).translate(LATEX) for cell in cells)
        return " & ".join(re.sub(r"^\*\*(.*)\*\*$", r"\\textbf{\1}", cell) for cell in minus) + r" \\"

    begin = rf"\begin{{tabular}}{{{_sides(align, len(header))}}}"
    body = [r"\toprule", line(header), r"\midrule", *map(line, rows), r"\bottomrule"]
    return "\n".join([begin, *body, r"\end{tabular}"]) + "\n"


def _sides(align: str, count: int) -> str:
    """``align`` extended to ``count`` columns."""
    return (align or "l").ljust(count, (align or "l")[-1])[:count]


def shortened(text: str, most: int = 200) -> str:
    """``text`` of at most ``most`` characters, without its middle if it is longer."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names: `a, b, c and 2 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys that begin with ``prefix``."""
    if not isinstance(data, dict):
        return {prefix: data}
    inner = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in data.items())
    return {key: value for part in inner for key, value in part.items()}


def unbroken(text: str) -> str:
    """``text`` with no-break spaces in intervals such as `+0.8 [+0.3, +1.3]`."""
    number = r"[-+−×]?[\d.∞]+"
    return re.sub(rf"(?:(?<=\d) )?\[{number}, {number}\]", lambda match: match[0].replace(" ", "\u00a0"), text)


def redacted(text: str) -> str:
    """``text`` with every address in it shown without user name, password and query, which may hold a token.

    >>> redacted("no answer from http://me:secret@host/path?token=x")
    'no answer from http://host/path'
    """
    return re.sub(r"(?<=://)(?:[^/\s]*@)?([^\s?#]*)(?:[?#]\S*)?", r"\1", text)
