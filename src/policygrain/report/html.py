"""Self-contained HTML pages from Jinja2 templates, and Markdown tables in them."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from ..text import unbroken


def render(template: Traversable, /, **values: Any) -> str:
    """The page of the file ``template``, such as `resources.files(__package__) / "page.html"`. Values are escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)


def content_security_policy() -> Markup:
    """A policy for a page that loads nothing and runs no script."""
    return Markup(
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'none'; "
        "base-uri 'none'; form-action 'none'"
    )


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
