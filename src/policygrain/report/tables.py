"""Markdown tables as HTML that becomes cards on a narrow screen."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

from ..text import unbroken


def tables(text: str) -> Markup:
    """The HTML of a Markdown text; each cell of a table names its column (`data-label`), which cards show.

    HTML in the text is escaped, so that a study cannot add code to the page.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(unbroken(text))
    columns: list[str] = []
    place = 0
    for i, token in enumerate(tokens):
        if token.type == "thead_open":
            columns = []
        elif token.type == "th_open":
            columns.append(tokens[i + 1].content)
        elif token.type == "tr_open":
            place = 0
        elif token.type == "td_open":
            token.attrSet("data-label", columns[place] if place < len(columns) else "")
            place += 1
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))
