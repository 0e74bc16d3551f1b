"""Templates of pages: texts are escaped, and a missing value is an error."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from policygrain.report.html import render


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("templates") / "page.html"
    path.write_text('<b title="{{ text }}">{{ text }}</b>')
    return path


@given(st.text() | st.sampled_from(["</b><script>", "<!--", '" onload="x']))
def test_a_text_stays_a_text(template: Path, text: str) -> None:
    page = render(template, text=text)
    assert html.unescape(page) == f'<b title="{text}">{text}</b>'
    assert page.count("<") == 2 and page.count('"') == 2


def test_a_missing_value_is_an_error(template: Path) -> None:
    with pytest.raises(UndefinedError, match="text"):
        render(template)
