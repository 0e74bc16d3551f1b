"""Records and JSON Lines: written and read back the same; anything else in their place is one message."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from policygrain.errors import UserError
from policygrain.files import json_lines
from policygrain.records import (
    SCHEMA_VERSION,
    BenchmarkRecord,
    Done,
    EvaluationFacts,
    ModelEvaluation,
    RunConfig,
    RunInputs,
    read_record,
    write_record,
)
from policygrain.results import TRAIN, read_steps

from .support.files import write_lines

AGAIN = "Make it again."
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MAPPINGS = st.dictionaries(TEXT, JSON, max_size=3)
CONFIGS = st.builds(
    RunConfig,
    key=TEXT,
    arm=TEXT,
    seed=st.integers(),
    settings=MAPPINGS,
    method=MAPPINGS,
    training=MAPPINGS,
    inputs=st.builds(RunInputs, start_model=TEXT, train=TEXT, validation=TEXT),
)
SCORES = st.lists(st.floats(0, 1) | st.sampled_from([float("inf"), -float("inf")]), min_size=1, max_size=3)
BENCHMARK: dict[str, Any] = {"benchmark": "b", "n": 1, "accuracy": 0.5, "contaminated": [], "pass_at": {1: 0.5}}
BENCHMARK |= {"majority": 0.5, "outcomes": {}, "tokens": 1, "truncated": 0.0}


def benchmark(scores: list[float]) -> BenchmarkRecord:
    return BenchmarkRecord(**BENCHMARK, problems=len(scores), per_problem=scores)


EVALUATIONS = st.builds(
    ModelEvaluation,
    model=TEXT,
    key=TEXT,
    protocol=MAPPINGS,
    facts=st.just(EvaluationFacts(seconds={}, hardware="", versions={})),
    records=st.lists(SCORES.map(benchmark), max_size=2),
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(CONFIGS | EVALUATIONS)
def test_a_record_is_read_as_it_was_written(tmp_path_factory, record):
    """Any text, any JSON inside it, and numbers that JSON lacks; the file is JSON for others too."""
    path = tmp_path_factory.mktemp("records") / "record.json"
    write_record(path, record)
    assert read_record(type(record), path, AGAIN) == record
    json.loads(path.read_text(), parse_constant=pytest.fail)


NO_JSON = [b'{"step": 1', b'{"step": "\xff"}', b"[" * 100_000]
NO_OBJECT = {b"7": "int", b"[]": "list", b"null": "NoneType", b'"text"': "str"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "not JSON") for content in (b"", b"\xff\xfe\x00", *NO_JSON)),
        *((content, f"expected a JSON object, got {kind}") for content, kind in NO_OBJECT.items()),
        (b"{}", "written by an older version of policygrain (record schema 1, this version reads 2)"),
        (b'{"schema_version": 1, "key": "x"}', "written by an older version"),
        (b'{"schema_version": 99}', "written by a newer version of policygrain (record schema 99"),
        (b'{"schema_version": "x"}', "written by a newer version"),
        (b'{"schema_version": null}', "written by a newer version"),
        (b'{"schema_version": 2, "results": {}, "unknown_key": 1}', "unknown_key: Extra inputs are not permitted"),
        (b'{"schema_version": 2, "results": {"grpo/seed0": 7}}', "results.grpo/seed0: Input should be a valid string"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_anything_else_is_one_message(content, message, tmp_path):
    """It names the file, the key and what to do."""
    assert SCHEMA_VERSION == 2
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_record(Done, path, AGAIN)
    said = str(raised.value)
    assert said.startswith(f"{path}: ") and message in said and said.endswith(AGAIN) and len(said.splitlines()) == 1
    with pytest.raises(UserError, match=r"cannot be read: Is a directory\. Make it again"):
        read_record(Done, tmp_path, AGAIN)


def test_scores_are_as_many_as_problems():
    for problems, scores in ((3, [0.0, 1.0]), (0, [])):
        with pytest.raises(ValidationError, match=f"{len(scores)} scores for {problems} problems"):
            BenchmarkRecord(**BENCHMARK, problems=problems, per_problem=scores)


# ---- JSON Lines -----------------------------------------------------------------------------------------------------


def test_lines_have_their_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": "ä\\u2028"}\n\n{"b": 2}')  # a line may be empty, the last one may lack its end
    assert list(json_lines(path)) == [(1, {"a": "ä\u2028"}), (3, {"b": 2})]
    path.write_text("")
    assert list(json_lines(path, TRAIN)) == [] == read_steps(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [*((line, "not JSON") for line in NO_JSON), (b"[1]", "expected a JSON object, got list"), (b"1", "got int")],
    ids=lambda x: str(x)[:40],
)
def test_a_broken_line_is_named(line, message, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n' + line + b'\n{"step": 2}\n')
    for read in (lambda: list(json_lines(path, TRAIN)), lambda: read_steps(path)):
        with pytest.raises(UserError) as raised:
            read()
        said = str(raised.value)
        assert said.startswith(f"{path}, line 2: ") and message in said and said.endswith(TRAIN)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 5) | st.sampled_from([None, "1"]), max_size=6))
def test_steps_are_read_only_where_they_are_complete(tmp_path_factory, steps):
    path = write_lines(tmp_path_factory.mktemp("lines") / "metrics.jsonl", [{"step": step} for step in steps])
    wrong = next((n for n, step in enumerate(steps) if step != n), None)
    if wrong is None:
        assert [row["step"] for row in read_steps(path)] == steps
        return
    with pytest.raises(UserError) as raised:
        read_steps(path)
    place = f"{path}, line {wrong + 1}: expected step {wrong}, found {steps[wrong]!r}"
    assert f"{place}: steps are missing or doubled" in str(raised.value)
    path.unlink()
    with pytest.raises(UserError, match=rf"metrics\.jsonl: cannot be read: No such file or directory\. {TRAIN}"):
        read_steps(path)
