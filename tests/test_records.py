"""Records and JSON Lines: written and read back the same; anything else in their place is one message."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from policygrain.errors import UserError
from policygrain.files import json_lines
from policygrain.paths import RunFolder
from policygrain.records import (
    BenchmarkRecord,
    EvaluationFacts,
    ModelEvaluation,
    TrackingRecord,
    read_record,
    write_record,
)
from policygrain.results import TRAIN, run_metrics

from .support.files import write_lines

AGAIN = "Make it again."
BENCHMARK: dict[str, Any] = {"benchmark": "b", "n": 1, "accuracy": 0.5, "contaminated": [], "pass_at": {1: 0.5}}
BENCHMARK |= {"majority": 0.5, "outcomes": {}, "tokens": 1, "truncated": 0.0}


def test_a_record_is_read_as_it_was_written(tmp_path):
    """Any text, any JSON inside it, and numbers that JSON lacks; the file is JSON for others too."""
    path, scores = tmp_path / "record.json", [float("inf"), -float("inf"), 0.1]
    records = [BenchmarkRecord(**BENCHMARK, problems=3, per_problem=scores)]
    facts = EvaluationFacts(seconds={}, hardware="", versions={})
    protocol = {"ä\u2028": [None, {"x": 1e-300}, 2**53, "\u0000"]}
    record = ModelEvaluation(model='π "', key="", protocol=protocol, facts=facts, records=records)
    write_record(path, record)
    assert read_record(ModelEvaluation, path, AGAIN) == record
    json.loads(path.read_text(), parse_constant=pytest.fail)


NO_JSON = [b'{"step": 1', b'{"step": "\xff"}', b"[" * 100_000]
ANOTHER = "written by another version of policygrain (record schema"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "not JSON") for content in (b"", b"\xff\xfe\x00", *NO_JSON)),
        (b"7", "expected a JSON object, got int"),
        (b"null", "expected a JSON object, got NoneType"),
        (b"{}", f"{ANOTHER} 1, this one reads 2)"),
        (b'{"schema_version": 99}', f"{ANOTHER} 99"),
        (b'{"schema_version": null}', f"{ANOTHER} None"),
        (b'{"schema_version": 2, "unknown_key": 1}', "uri: this key is missing."),
        (b'{"schema_version": 2, "uri": "", "experiment": "", "runs": {"grpo/seed0": 7}}', "runs.grpo/seed0: Input"),
        (b'{"schema_version": 2, "uri": "", "experiment": "", "runs": {}, "key": 1}', "key: Extra inputs are not"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_anything_else_is_one_message(content, message, tmp_path):
    """It names the file, the key and what to do."""
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_record(TrackingRecord, path, AGAIN)
    said = str(raised.value)
    assert said.startswith(f"{path}: ") and message in said and said.endswith(AGAIN) and len(said.splitlines()) == 1


def test_scores_are_as_many_as_problems():
    for problems, scores in ((3, [0.0, 1.0]), (0, [])):
        with pytest.raises(ValidationError, match=f"{len(scores)} scores for {problems} problems"):
            BenchmarkRecord(**BENCHMARK, problems=problems, per_problem=scores)


def test_lines_have_their_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": "ä\\u2028"}\n\n{"b": 2}')  # a line may be empty, the last one may lack its end
    assert list(json_lines(path)) == [(1, {"a": "ä\u2028"}), (3, {"b": 2})]


@pytest.mark.parametrize(
    ("line", "message"),
    [*((line, "not JSON") for line in NO_JSON), (b"[1]", "expected a JSON object, got list")],
    ids=lambda x: str(x)[:40],
)
def test_a_broken_line_is_named(line, message, tmp_path):
    run = RunFolder(tmp_path)
    run.metrics.write_bytes(b'{"step": 0}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(UserError) as raised:
        run_metrics(run)
    said = str(raised.value)
    assert said.startswith(f"{run.metrics}, line 2: ") and message in said and said.endswith(TRAIN)


@pytest.mark.parametrize("steps", [[], [0], [1], [0, 1, 2], [0, 2], [0, 1, 1], [0, None], ["0"]])
def test_steps_are_read_only_where_they_are_complete(steps, tmp_path):
    path = write_lines(tmp_path / "metrics.jsonl", [{"step": step} for step in steps])
    wrong = next((n for n, step in enumerate(steps) if step != n), None)
    if wrong is None:
        assert [row["step"] for row in run_metrics(RunFolder(tmp_path))] == steps
        return
    with pytest.raises(UserError, match=f"{path}, line {wrong + 1}: expected step {wrong}, found {steps[wrong]!r}"):
        run_metrics(RunFolder(tmp_path))
