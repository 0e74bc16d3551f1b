"""Evaluating models: what is written, what is not done twice, and messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from policygrain.errors import UserError
from policygrain.evaluate.evaluation import evaluate
from policygrain.files import read_json_lines
from policygrain.paths import DataFolder, StudyFolder
from policygrain.results import evaluated_samples, model_evaluation, samples

from ..support.small import small_study


def test_records_keep_every_sample_and_are_not_made_twice(made: tuple[Path, Path], tmp_path: Path) -> None:
    data, start = DataFolder(made[0]), made[1]
    study, results = small_study(), StudyFolder(tmp_path)
    keys = evaluate(study, {"start/seed0": start}, data, results)
    folder = results.evaluation("start/seed0")
    found = model_evaluation(folder)
    assert keys == {"start/seed0": found.key} and found.model == "start/seed0"
    (record,) = found.records
    samples, rows = folder.samples, evaluated_samples(folder, record)
    assert len(rows) == 15 * 2 == sum(record.outcomes.values())
    assert record.accuracy == (rows["outcome"] == "correct").mean()
    assert (rows["outcome"][rows["answer"].isna()] == "unparsable").all()
    assert record.accuracy == pytest.approx(np.mean(record.per_problem))
    assert record.pass_at[2] >= record.pass_at[1] == pytest.approx(record.accuracy)
    stamp = samples.stat().st_mtime_ns
    assert evaluate(study, {"start/seed0": start}, data, results) == keys
    assert samples.stat().st_mtime_ns == stamp
    content = samples.read_bytes()
    samples.unlink()
    assert evaluate(study, {"start/seed0": start}, data, results) == keys and samples.read_bytes() == content
    # Under another protocol everything is sampled again, and the key differs.
    other = small_study(evaluation={"sampling": {"n": 1, "temperature": 0.0, "max_tokens": 12}})
    assert evaluate(other, {"start/seed0": start}, data, results) != keys
    assert samples.stat().st_mtime_ns != stamp
    assert model_evaluation(folder).key != found.key and model_evaluation(folder).records[0].n == 1


def test_a_record_that_cannot_be_read_is_made_again(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, start = DataFolder(made[0]), made[1]
    study, results = small_study(), StudyFolder(tmp_path)
    keys = evaluate(study, {"start/seed0": start}, data, results)
    folder = results.evaluation("start/seed0")
    whole = model_evaluation(folder)
    folder.record.write_text("7")
    assert evaluate(study, {"start/seed0": start}, data, results) == keys
    assert model_evaluation(folder).records == whole.records
    assert "records.json: expected a JSON object, got int" in capsys.readouterr().err


def test_contaminated_problems_are_in_the_record(made: tuple[Path, Path], tmp_path: Path) -> None:
    """By their positions: the second and the fourth of the benchmark's problems."""
    data, start = DataFolder(made[0]), made[1]
    copy = DataFolder(tmp_path / "data")
    copy.benchmark("count").parent.mkdir(parents=True)
    copy.benchmark("count").write_bytes(data.benchmark("count").read_bytes())
    pairs = [{"benchmark": f"count-test-0000{i}", "train": "x"} for i in (1, 3)]
    assert [row["id"] for row in read_json_lines(copy.benchmark("count"))][1] == "count-test-00001"
    copy.contamination.write_text(json.dumps({"schema_version": 2, "overlaps": {"count": pairs}}))
    evaluate(small_study(), {"start/seed0": start}, copy, StudyFolder(tmp_path))
    folder = StudyFolder(tmp_path).evaluation("start/seed0")
    before = model_evaluation(folder)
    assert before.records[0].contaminated == [1, 3]
    # Other training problems change the positions alone: nothing is sampled again.
    stamp = folder.samples.stat().st_mtime_ns
    copy.contamination.write_text(json.dumps({"schema_version": 2, "overlaps": {"count": pairs[1:]}}))
    evaluate(small_study(), {"start/seed0": start}, copy, StudyFolder(tmp_path))
    after = model_evaluation(folder)
    assert after.records[0].contaminated == [3] and folder.samples.stat().st_mtime_ns == stamp
    assert after.records[0].model_copy(update={"contaminated": [1, 3]}) == before.records[0]


def test_a_missing_model_is_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    results = StudyFolder(tmp_path)
    with pytest.raises(UserError, match=r"model: has no model; train it first \(grpo/seed0\)"):
        evaluate(small_study(), {"grpo/seed0": results.run("grpo", 0).model}, DataFolder(made[0]), results)


def test_a_prompt_too_long_for_the_context_is_named(made: tuple[Path, Path], tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    long = {"problem": "count 1 in " + " ".join(f"a{i}" for i in range(60)), "answer": "1"}
    data.benchmark("count").parent.mkdir(parents=True)
    data.benchmark("count").write_text(json.dumps(long) + "\n")
    with pytest.raises(UserError, match="leaves no room for the response"):
        evaluate(small_study(), {"start/seed0": made[1]}, data, StudyFolder(tmp_path))


def test_two_extraction_protocols_side_by_side_grade_the_same_responses(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """Qwen's protocol takes the last number where there is no box, so it finds at least as many answers as `boxed`."""
    made_data, start = DataFolder(made[0]), made[1]
    data = DataFolder(tmp_path / "data")
    sampling = {"n": 2, "temperature": 1.0, "max_tokens": 12}
    benchmarks: list[dict[str, object]] = [
        {"name": "count", "source": "count", "size": 15},
        {"name": "count_qwen", "source": "count", "size": 15, "extraction": "qwen_math"},
    ]
    for name in ("count", "count_qwen"):
        data.benchmark(name).parent.mkdir(parents=True, exist_ok=True)
        data.benchmark(name).write_bytes(made_data.benchmark("count").read_bytes())
    study = small_study(evaluation={"sampling": sampling, "benchmarks": benchmarks})
    evaluate(study, {"start/seed0": start}, data, StudyFolder(tmp_path))
    folder = StudyFolder(tmp_path).evaluation("start/seed0")
    boxed, qwen = model_evaluation(folder).records
    ours, theirs = evaluated_samples(folder, boxed), evaluated_samples(folder, qwen)
    assert ours["response"].tolist() == theirs["response"].tolist() and len(ours) == 30
    assert qwen.outcomes.get("unparsable", 0) <= boxed.outcomes.get("unparsable", 0)
    protocol = model_evaluation(folder).protocol["benchmarks"]
    assert [protocol[name]["extraction"] for name in ("count", "count_qwen")] == ["boxed", "qwen_math"]


def test_repeated_problems_are_one_problem_with_more_responses(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Five problems, three lines each: the scores of five problems, and as many responses as lines × n."""
    made_data, start = DataFolder(made[0]), made[1]
    data = DataFolder(tmp_path / "data")
    data.benchmark("count").parent.mkdir(parents=True)
    lines = made_data.benchmark("count").read_text().splitlines()[:5]
    rows = [json.loads(line) | {"id": f"{i}"} for i, line in enumerate(lines * 3)]
    data.benchmark("count").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = small_study(evaluation={"sampling": {"n": 2, "temperature": 1.0, "max_tokens": 12}})
    evaluate(study, {"start/seed0": start}, data, StudyFolder(tmp_path))
    folder = StudyFolder(tmp_path).evaluation("start/seed0")
    (record,) = model_evaluation(folder).records
    assert (record.problems, record.n, len(record.per_problem)) == (5, 6, 5)
    samples = evaluated_samples(folder, record)
    assert len(samples) == 30 and {*samples["id"]} == {*"01234"}
    assert record.accuracy == pytest.approx((samples["outcome"] == "correct").mean())


def test_stop_strings_end_responses_without_sampling_again(made: tuple[Path, Path], tmp_path: Path) -> None:
    data, start = DataFolder(made[0]), made[1]
    evaluate(small_study(), {"start/seed0": start}, data, StudyFolder(tmp_path))
    folder = StudyFolder(tmp_path).evaluation("start/seed0")
    whole = evaluated_samples(folder, model_evaluation(folder).records[0])
    stop = next(character for response in whole["response"] for character in response[1:])
    evaluate(small_study(evaluation={"stop": [stop]}), {"start/seed0": start}, data, StudyFolder(tmp_path))
    ended = evaluated_samples(folder, model_evaluation(folder).records[0])
    assert ended["response"].tolist() == [response.partition(stop)[0] for response in whole["response"]]
    assert not ended["truncated"][whole["response"].str.contains(stop, regex=False)].any()
    assert model_evaluation(folder).protocol["stop"] == [stop]


def test_greedy_responses_are_scored_besides_the_sampled_ones(made: tuple[Path, Path], tmp_path: Path) -> None:
    data, start = DataFolder(made[0]), made[1]
    study, results = small_study(evaluation={"greedy": True}), StudyFolder(tmp_path)
    evaluate(study, {"start/seed0": start}, data, results)
    folder = results.evaluation("start/seed0")
    (record,) = model_evaluation(folder).records
    rows = samples(folder.samples)
    right = rows["outcome"][rows["greedy"]] == "correct"
    assert record.greedy == right.astype(float).tolist() and len(right) == 15
    assert len(evaluated_samples(folder, record)) == 30, "the sampled ones alone"
    # Greedy decoding is what an evaluation at temperature 0 does.
    alone, apart = small_study(evaluation={"sampling": {"n": 1, "temperature": 0.0, "max_tokens": 12}}), tmp_path / "b"
    evaluate(alone, {"start/seed0": start}, data, StudyFolder(apart))
    (greedy,) = model_evaluation(StudyFolder(apart).evaluation("start/seed0")).records
    assert greedy.per_problem == record.greedy and greedy.greedy is None
    # The sampled responses do not depend on it.
    plain = tmp_path / "c"
    evaluate(small_study(), {"start/seed0": start}, data, StudyFolder(plain))
    (sampled,) = model_evaluation(StudyFolder(plain).evaluation("start/seed0")).records
    assert sampled.per_problem == record.per_problem
