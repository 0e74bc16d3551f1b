"""Records: written and read back the same; anything else in their place is one message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from policygrain import records
from policygrain.errors import UserError
from policygrain.records import (
    SCHEMA_VERSION,
    BenchmarkRecord,
    Done,
    Record,
    RunConfig,
    RunSummary,
    read_record,
    write_record,
)

AGAIN = "Make it again."


def subclasses(kind: type[BaseModel]) -> list[type[Any]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


KINDS = [kind for kind in subclasses(Record) if kind is not Record]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of the types that records are made of."""
    if annotation is Any:
        return JSON
    if annotation in (str, int, float, bool, type(None)):
        return {str: TEXT, int: st.integers(), float: FLOATS, bool: st.booleans(), type(None): st.none()}[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return entries(annotation)
    origin, inner = getattr(annotation, "__origin__", None), getattr(annotation, "__args__", ())
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is list:
        return st.lists(values(inner[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    return st.one_of(*map(values, inner))  # a union


def entries(kind: type[BaseModel]) -> st.SearchStrategy[Any]:
    fields = {name: values(info.annotation) for name, info in kind.model_fields.items() if name != "schema_version"}
    if kind is BenchmarkRecord:
        scores = st.lists(FLOATS, min_size=1, max_size=3)
        fields |= {"per_problem": scores, "problems": st.none()}
        return st.fixed_dictionaries(fields).map(lambda d: kind(**{**d, "problems": len(d["per_problem"])}))
    return st.builds(kind, **fields)


def test_every_record_is_tested() -> None:
    assert {RunConfig, RunSummary, Done} <= set(KINDS)
    assert {k for k in vars(records).values() if isinstance(k, type) and issubclass(k, Record)} - {Record} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_is_read_as_it_was_written(kind: type[Record], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("records") / "record.json"

    @settings(deadline=None, derandomize=True, max_examples=25)
    @given(entries(kind))
    def round_trip(record: Record) -> None:
        write_record(path, record)
        assert read_record(kind, path, AGAIN) == record
        json.loads(path.read_text(), parse_constant=pytest.fail)  # JSON for others too: no NaN, no Infinity

    round_trip()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"7", "expected a JSON object, got int"),
        (b"[]", "expected a JSON object, got list"),
        (b"null", "expected a JSON object, got NoneType"),
        (b'"text"', "expected a JSON object, got str"),
        (b"{}", "written by an older version of policygrain (record schema 1, this version reads 2)"),
        (b'{"schema_version": 1, "key": "x"}', "written by an older version"),
        (b'{"schema_version": 99}', "written by a newer version of policygrain (record schema 99"),
        (b'{"schema_version": "x"}', "written by a newer version"),
        (b'{"schema_version": null}', "written by a newer version"),
        (b'{"schema_version": 2, "unknown_key": 1}', "unknown_key: Extra inputs are not permitted"),
        (b"", "not JSON"),
        (b'{"schema_version": 2', "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"schema_version": 2, "a": "\xe4"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=str,
)
def test_anything_else_is_one_message(content: bytes | None, message: str, tmp_path: Path) -> None:
    """It names the file and what to do; of all kinds of records, which one function reads."""
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    for kind in KINDS:
        with pytest.raises(UserError) as raised:
            read_record(kind, path, AGAIN)
        said = str(raised.value)
        assert said.startswith(f"{path}: ") and said.endswith(AGAIN)
        assert message in said or ("unknown_key" in message and "Field required" in said)
        assert len(said.splitlines()) == 1
    with pytest.raises(UserError, match=r"cannot be read: Is a directory\. Make it again"):
        read_record(Done, tmp_path, AGAIN)


def test_a_wrong_value_is_named_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "done.json"
    path.write_text(json.dumps({"schema_version": SCHEMA_VERSION, "results": {"grpo/seed0": 7}}))
    with pytest.raises(UserError, match=r"done\.json: results\.grpo/seed0: Input should be a valid string\. Make"):
        read_record(Done, path, AGAIN)


def test_scores_are_as_many_as_problems() -> None:
    fields: dict[str, Any] = {"benchmark": "b", "n": 1, "accuracy": 0.5, "contaminated": [], "pass_at": {1: 0.5}}
    fields |= {"majority": 0.5, "outcomes": {}, "tokens": 1, "truncated": 0.0}
    assert BenchmarkRecord(**fields, problems=2, per_problem=[0.0, 1.0]).problems == 2
    for problems, scores in ((3, [0.0, 1.0]), (0, [])):
        with pytest.raises(ValidationError, match=f"{len(scores)} scores for {problems} problems"):
            BenchmarkRecord(**fields, problems=problems, per_problem=scores)
