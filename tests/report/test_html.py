"""Templates, JSON inside a script, and the policy of pages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from policygrain.report.html import content_security_policy, render


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("templates") / "page.html"
    path.write_text('<b title="{{ text }}">{{ text }}</b><script>{{ data | tojson }}</script>')
    return path


@given(
    st.recursive(
        st.text() | st.integers() | st.none() | st.sampled_from(["</script>", "<!--<script>", "\u2028"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_a_script_is_the_value_and_cannot_end_the_script(template: Path, value: object) -> None:
    data = re.fullmatch(r"<b title=\"\"></b><script>(.*)</script>", render(template, text="", data=value))
    assert data is not None and json.loads(data[1]) == value
    assert data[1].isascii() and "<" not in data[1]


def test_a_missing_value_is_an_error(template: Path) -> None:
    with pytest.raises(UndefinedError, match="text"):
        render(template, data=0)


def test_the_policy_allows_only_the_scripts_given() -> None:
    digest = base64.b64encode(hashlib.sha256("let a = 'ä';".encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in content_security_policy("let a = 'ä';")
    assert "script-src 'none';" in content_security_policy()
    assert content_security_policy().startswith("default-src 'none';")
