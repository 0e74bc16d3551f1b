"""A hook of MkDocs: formulas as MathML, which browsers show without a script and without a network."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    shown = convert(html.unescape(found[3]).strip(), display=display)
    return f'<div class="formula">{shown}</div>' if display == "block" else shown
