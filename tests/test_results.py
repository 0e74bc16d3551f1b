"""Records and the reader of a study's results: whose they are, whether they are complete, and tables of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from policygrain import records
from policygrain.errors import UserError
from policygrain.files import json_lines, read_json
from policygrain.merging import merge
from policygrain.paths import RunFolder
from policygrain.records import read_record, write_record
from policygrain.results import TRAIN, StudyResults, evaluated_samples, model_evaluation, run_metrics
from policygrain.study import Study, load_study
from policygrain.study.runs import Run

from .support.files import write_lines
from .support.made_up import STEPS, make_up

AGAIN = "Make it again."
BENCHMARK: dict[str, Any] = {"benchmark": "b", "n": 1, "accuracy": 0.5, "contaminated": [], "pass_at": {1: 0.5}}
BENCHMARK |= {"majority": 0.5, "outcomes": {}, "tokens": 1, "truncated": 0.0}
NO_JSON = [b'{"step": 1', b'{"step": "\xff"}', b"[" * 100_000]
CASES = Path(__file__).with_name("cases.yaml")


def test_a_record_is_read_as_it_was_written(tmp_path):
    """Any text, any JSON inside it, and numbers that JSON lacks; the file is JSON for others too."""
    path, scores = tmp_path / "record.json", [float("inf"), -float("inf"), 0.1]
    benchmarks = [records.BenchmarkRecord(**BENCHMARK, problems=3, per_problem=scores)]
    facts = records.EvaluationFacts(seconds={}, hardware="", versions={})
    protocol = {"ä\u2028": [None, {"x": 1e-300}, 2**53, "\u0000"]}
    record = records.ModelEvaluation(model='π "', key="", protocol=protocol, facts=facts, records=benchmarks)
    write_record(path, record)
    assert read_record(records.ModelEvaluation, path, AGAIN) == record
    json.loads(path.read_text(), parse_constant=pytest.fail)


NOT_READ = [(bytes, "not JSON") for bytes in (b"", b"\xff\xfe\x00", *NO_JSON)]
NOT_READ += [(text and text.encode(), says) for text, says in yaml.safe_load(CASES.read_text())["not read"]]


@pytest.mark.parametrize(("content", "message"), NOT_READ, ids=lambda x: str(x)[:40])
def test_anything_else_is_one_message(content, message, tmp_path):
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_record(records.TrackingRecord, path, AGAIN)
    said = str(raised.value)
    assert said.startswith(f"{path}: ") and message in said and said.endswith(AGAIN) and len(said.splitlines()) == 1


def test_scores_are_as_many_as_problems():
    for problems, scores in ((3, [0.0, 1.0]), (0, [])):
        with pytest.raises(ValidationError, match=f"{len(scores)} scores for {problems} problems"):
            records.BenchmarkRecord(**BENCHMARK, problems=problems, per_problem=scores)


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


@pytest.fixture
def study(in_root):
    return load_study("tests/support/every_stage.yaml")


@pytest.fixture
def results(study, tmp_path):
    return StudyResults(make_up(study, tmp_path / "smoke", {"start": 0, "tepo": 9}))


def again(results: StudyResults, **changes: Any) -> StudyResults:
    """The same results, read anew as those of a study with other keys."""
    data = merge(results.study.model_dump(mode="json"), changes)
    return StudyResults(results.folder.path, Study.model_validate(data, strict=False))


def test_the_study_is_the_one_in_the_folder(results, study, tmp_path):
    written = {"base": None, "tuned_on": results.study.tuned_on}  # relative to the written file
    assert results.study == study.model_copy(update=written)
    with pytest.raises(UserError, match=r"nowhere: no study\.yaml here; give a study's results folder"):
        StudyResults(tmp_path / "nowhere")
    results.folder.study.write_text("name: [")
    with pytest.raises(UserError, match=r"study\.yaml: not readable as YAML"):
        StudyResults(results.folder.path)


def test_runs_of_other_settings_are_refused_by_the_keys_that_differ(results):
    other = again(results, training={"learning_rate": 0.5, "max_tokens": 25}, prompt={"template": "{problem}?"})
    keys = r"\(prompt\.template, training\.learning_rate, training\.max_tokens differ\)"
    with pytest.raises(UserError, match=f"{results.folder.run('grpo', 0).path}.*{keys}"):
        _ = other.steps
    with pytest.raises(UserError, match=r"runs/tepo/seed0: .*\(method differ\)"):
        _ = again(results, methods={"tepo": {"clip": {"low": 0.1}}}).summaries


def test_runs_with_custom_functions_are_read_where_these_are_missing(results):
    folder = next(iter(results.trained.values()))
    config = read_json(folder.config)
    config["settings"]["code"] = {"gone:half": "0" * 16}
    folder.config.write_text(json.dumps(config))
    assert len(again(results).trained) == len(results.trained)


def test_only_the_study_s_own_runs_are_read(results):
    """A run of an arm that the study had before stays on disk and is in no table."""
    fewer = again(results, experiments={"headline": {"methods": ["grpo"]}})
    assert set(results.steps["arm"]) - set(fewer.steps["arm"]) == {"tepo"}
    assert set(results.evaluations["arm"]) - set(fewer.evaluations["arm"]) == {"tepo"}


def test_a_run_that_has_not_ended_is_read_as_far_as_it_is(results):
    run = results.folder.run("tepo", 1)
    run.summary.unlink()
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:2]) + '{"step": 2, "va')
    found = again(results)
    rows = found.steps.query("arm == 'tepo' and seed == 1")
    assert rows["step"].tolist() == [0, 1] and rows["total_seconds"].tolist() == [2.0, 4.0]
    assert Run("tepo", 1) in found.trained and Run("tepo", 1) not in found.summaries
    assert found.steps_of_arms["tepo"]["seed"].unique().tolist() == [0], "analyses are of runs that have ended"


def test_a_run_that_has_ended_has_all_its_steps_and_may_lack_timings(results):
    run = results.folder.run("tepo", 1)
    run.timings.unlink()
    rows = again(results).steps
    assert len(rows) == len(results.matrix.runs) * (STEPS + 1)
    assert "total_seconds" in rows and rows.query("arm == 'tepo' and seed == 1")["total_seconds"].isna().all()
    lines = [*run.metrics.read_text().splitlines(keepends=True), json.dumps({"step": STEPS + 1}) + "\n"]
    for count in (0, 1, STEPS, STEPS + 2):
        run.metrics.write_text("".join(lines[:count]))
        with pytest.raises(UserError, match=rf"metrics\.jsonl: {count} steps of {STEPS + 1}, although the run has end"):
            run_metrics(run)


def test_tables_of_steps_and_evaluations(results):
    assert set(results.steps["arm"]) == set(results.matrix.arms)
    assert results.arms("headline") == ["grpo", "tepo"] and results.arms("nothing") == []
    assert list(results.model_evaluations)[:2] == ["start/seed0", "start/seed1"]
    assert results.scores("tepo", "count").mean() == 0.75 and results.scores("start", "count").sum() == 0
    with pytest.raises(UserError, match="no evaluation of 'dapo' on 'count'"):
        results.scores("dapo", "count")


def test_problems_seen_in_training_are_left_out_of_clean_scores(results):
    """The first and the last of 12 problems; nine are solved by TEPO, among them the first."""
    for _, folder in results.folder.evaluations():
        found = model_evaluation(folder)
        seen = {"count": [0, 11]}
        marked = [r.model_copy(update={"contaminated": seen.get(r.benchmark, [])}) for r in found.records]
        write_record(folder.record, found.model_copy(update={"records": marked}))
    clean = again(results)
    assert clean.contaminated("count") == [0, 11] and clean.contaminated("running_total") == []
    assert clean.scores("tepo", "count", clean=True).shape == (2, 10)
    assert clean.scores("tepo", "count", clean=True).mean() == 0.8
    assert clean.scores("tepo", "running_total", clean=True).mean() == 0.75


def test_evaluations_under_different_protocols_are_refused(results):
    folder = results.folder.evaluation("tepo/seed1")
    found = model_evaluation(folder)
    others: dict[str, Any] = dict.fromkeys(("grader", "prompt", "engine", "seed"), "other")
    for key, value in (others | {"benchmarks": {"count": {"problems": "other"}}}).items():
        write_record(folder.record, found.model_copy(update={"protocol": found.protocol | {key: value}}))
        with pytest.raises(UserError, match="different protocols"):
            _ = again(results).evaluations
    write_record(folder.record, found.model_copy(update={"protocol": found.protocol | {"model": "another"}}))
    assert len(again(results).evaluations) == len(results.evaluations)


def test_samples_are_those_of_the_record_and_no_record_is_empty(results):
    folder = results.folder.evaluation("tepo/seed1")
    (_, record) = model_evaluation(folder).records
    assert len(evaluated_samples(folder, record)) == 24
    with pytest.raises(UserError, match=r"samples\.parquet: these are not the samples that records\.json counts"):
        evaluated_samples(folder, record.model_copy(update={"outcomes": {"correct": 24}}))
    write_record(folder.record, model_evaluation(folder).model_copy(update={"records": []}))
    with pytest.raises(UserError, match=r"tepo/seed1/evaluation/records\.json: records: List should have at least 1"):
        _ = again(results).evaluations
