"""The reader of a study's results: whose they are, whether they are complete, and tables of them."""

import json
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.files import read_json
from policygrain.merging import merge
from policygrain.records import write_record
from policygrain.results import StudyResults, evaluated_samples, model_evaluation, run_metrics
from policygrain.study import Study, load_study
from policygrain.study.runs import Run

from .support.made_up import STEPS, make_up


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
    run.metrics.write_text(lines[1])
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1: expected step 0, found 1"):
        _ = again(results).steps


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
        records = [r.model_copy(update={"contaminated": seen.get(r.benchmark, [])}) for r in found.records]
        write_record(folder.record, found.model_copy(update={"records": records}))
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
