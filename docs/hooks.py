"""Hooks of MkDocs: the first page is the README, and formulas are MathML, which browsers show without a network."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
README = Path(__file__).parents[1] / "README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of the site: adds the README, with links from where it is."""
    text = re.sub(r"\]\((?!https?:|#|docs/)", "](../", README.read_text()).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_content(text: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    return FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    shown = convert(html.unescape(found[3]).strip(), display=display)
    return f'<div class="formula">{shown}</div>' if display == "block" else shown
