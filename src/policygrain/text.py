"""Text for people: tables for the terminal, in Markdown and LaTeX, lists of names, addresses without credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

SIDES = {"l": "left", "r": "right"}
LATEX = str.maketrans({"−": "$-$", "±": r"$\pm$", "φ": r"$\varphi$", "λ": r"$\lambda$", "π": r"$\pi$", "\u00a0": "~"})


def columns(
    rows: Sequence[Sequence[str]], header: Sequence[str] = (), align: str = "l", form: str = "plain"
) -> list[str]:
    """Lines of a table, the header first; ``form`` is one of tabulate's.

    ``align`` has one letter per column, "l" for left and "r" for right; the last letter applies to all further columns.
    """
    from tabulate import tabulate

    first, others = [SIDES[side] for side in align], SIDES[align[-1]]
    return tabulate(rows, header, form, colglobalalign=others, colalign=first, disable_numparse=True).splitlines()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "l") -> str:
    """A Markdown table that ends with a line break. ``align`` is as in `columns`; pipes in cells are escaped."""
    sides = align.ljust(len(header), align[-1])
    rule = "|" + "|".join("---:" if side == "r" else "---" for side in sides[: len(header)]) + "|"
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows))
    return "\n".join([head, rule, *body]) + "\n"


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "l") -> str:
    """The same table for LaTeX with the package booktabs; cells are bold as in Markdown, `**50.0**`."""
    text = "\n".join(columns(rows, header, align, "latex_booktabs")).translate(LATEX)
    text = re.sub(r"(?<![\w-])-(?=\d)", "$-$", text)
    return re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", text) + "\n"


def shortened(text: str, most: int = 200) -> str:
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}"


def some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix: data}
    inner = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in data.items())
    return {key: value for part in inner for key, value in part.items()}


def unbroken(text: str) -> str:
    number = r"[-+−×]?[\d.∞]+"
    return re.sub(rf"(?:(?<=\d) )?\[{number}, {number}\]", lambda match: match[0].replace(" ", "\u00a0"), text)


def redacted(text: str) -> str:
    """``text`` with every address in it shown without user name, password and query, which may hold a token.

    >>> redacted("no answer from http://me:secret@host/path?token=x")
    'no answer from http://host/path'
    """
    return re.sub(r"(?<=://)(?:[^/\s]*@)?([^\s?#]*)(?:[?#]\S*)?", r"\1", text)
