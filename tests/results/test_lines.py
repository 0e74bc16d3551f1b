"""JSON Lines of results: every mistake names file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.errors import UserError
from policygrain.files import json_lines
from policygrain.results.reader import TRAIN, read_steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, steps: list[Any]) -> None:
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))


def test_lines_have_their_numbers(path: Path) -> None:
    path.write_text('{"a": "ä\\u2028"}\n\n{"b": 2}')  # a line may be empty, the last one may lack its end
    assert list(json_lines(path)) == [(1, {"a": "ä\u2028"}), (3, {"b": 2})]
    path.write_text("")
    assert list(json_lines(path, TRAIN)) == [] == read_steps(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"step": 1', "not JSON"),
        (b'{"step": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b"1", "expected a JSON object, got int"),
        (b"null", "expected a JSON object, got NoneType"),
    ],
    ids=str,
)
def test_a_broken_line_is_named(path: Path, line: bytes, message: str) -> None:
    path.write_bytes(b'{"step": 0}\n' + line + b'\n{"step": 2}\n')
    for read in (lambda: list(json_lines(path, TRAIN)), lambda: read_steps(path)):
        with pytest.raises(UserError) as raised:
            read()
        assert str(raised.value).startswith(f"{path}, line 2: {message}") and str(raised.value).endswith(TRAIN)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 5) | st.sampled_from([None, "1"]), max_size=6))
def test_steps_are_read_only_where_they_are_complete(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    write(path, steps)
    wrong = next((n for n, step in enumerate(steps) if step != n), None)
    if wrong is None:
        assert [row["step"] for row in read_steps(path)] == steps
        return
    with pytest.raises(UserError) as raised:
        read_steps(path)
    place = f"{path}, line {wrong + 1}: expected step {wrong}, found {steps[wrong]!r}"
    assert f"{place}: steps are missing or doubled" in str(raised.value)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(UserError, match=rf"metrics\.jsonl: cannot be read: No such file or directory\. {TRAIN}"):
        read_steps(path)
