"""An evaluation of models: what is sampled, graded and recorded, scores by hand, and programs among problems."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policygrain.errors import UserError
from policygrain.evaluate import evaluation
from policygrain.evaluate.evaluation import evaluate_study
from policygrain.evaluate.scores import majority, pass_at_k, powers_of_two, score
from policygrain.grading.sandbox import isolation
from policygrain.model.torch_engine import TorchEngine
from policygrain.paths import DataFolder, EvaluationFolder, StudyFolder
from policygrain.records import EvaluatedSample
from policygrain.results import evaluated_samples, model_evaluation, samples
from policygrain.study import Study

from ..support.files import read_lines, write_lines
from ..support.small import prepare, small_study, trained

GREEDY = {"sampling": {"n": 1, "temperature": 0.0, "max_tokens": 12}}
MODEL = "start/seed0"


@pytest.fixture
def evaluated(made, tmp_path):
    """Evaluate the initial model, by default as the small study asks; returns the folder."""

    def call(study: Study | None = None, data: DataFolder | None = None, out: Path = tmp_path) -> EvaluationFolder:
        keys = evaluate_study(study or small_study(), {MODEL: made[1]}, data or DataFolder(made[0]), StudyFolder(out))
        folder = StudyFolder(out).evaluation(MODEL)
        assert keys == {MODEL: model_evaluation(folder).key}
        return folder

    return call


@pytest.fixture
def problems(made):
    return read_lines(DataFolder(made[0]).benchmark("count"))


def own(folder: Path, rows: list[dict[str, Any]]) -> DataFolder:
    """A prepared benchmark with these problems."""
    data = DataFolder(folder / "data")
    write_lines(data.benchmark("count"), rows)
    return data


def test_records_keep_every_sample_and_are_not_made_twice(evaluated):
    folder = evaluated()
    found = model_evaluation(folder)
    (record,) = found.records
    rows = evaluated_samples(folder, record)
    assert found.model == MODEL and len(rows) == 15 * 2 == sum(record.outcomes.values())
    assert record.accuracy == (rows["outcome"] == "correct").mean() == pytest.approx(np.mean(record.per_problem))
    assert (rows["outcome"][rows["answer"].isna()] == "unparsable").all()
    assert record.pass_at[2] >= record.pass_at[1] == pytest.approx(record.accuracy)
    content, stamps = folder.samples.read_bytes(), [p.stat().st_mtime_ns for p in (folder.samples, folder.record)]
    evaluated()
    assert [path.stat().st_mtime_ns for path in (folder.samples, folder.record)] == stamps
    folder.samples.unlink()
    assert model_evaluation(evaluated()).key == found.key and folder.samples.read_bytes() == content
    folder.record.write_text("7")
    with pytest.raises(UserError, match=r"records\.json: expected a JSON object, got int\. Remove it"):
        evaluated()
    folder.record.unlink()
    other = model_evaluation(evaluated(small_study(evaluation=GREEDY)))
    assert other.key != found.key and other.records[0].n == 1


def test_an_evaluation_that_was_stopped_samples_only_what_is_missing(evaluated, tmp_path, monkeypatch):
    whole = evaluated(out=tmp_path / "whole")
    generate, asked = TorchEngine.generate, list[int]()

    def stopped(self: TorchEngine, requests: list[Any]) -> Any:
        asked.append(len(requests))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return generate(self, requests)

    monkeypatch.setattr(evaluation, "CHUNK", 10)
    monkeypatch.setattr(TorchEngine, "generate", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluated()
    store = StudyFolder(tmp_path).evaluation(MODEL)
    assert len(store.sampled()) == 2 and not store.record.exists()
    evaluated()
    assert asked == [10, 10, 10, 10] and not store.sampled()
    assert store.samples.read_bytes() == whole.samples.read_bytes()


def test_contaminated_problems_are_in_the_record_by_their_positions(evaluated, problems, tmp_path):
    """Other training problems change the positions alone: nothing is sampled again."""
    data, stamps = own(tmp_path, problems), set()
    for positions in ([1, 3], [3]):
        pairs = [{"benchmark": problems[i]["id"], "train": "x"} for i in positions]
        data.contamination.write_text(json.dumps({"schema_version": 2, "overlaps": {"count": pairs}}))
        folder = evaluated(data=data)
        assert model_evaluation(folder).records[0].contaminated == positions
        stamps.add(folder.samples.stat().st_mtime_ns)
    assert len(stamps) == 1


def test_a_missing_model_and_a_prompt_too_long_for_the_context_are_named(evaluated, made, tmp_path):
    results = StudyFolder(tmp_path)
    with pytest.raises(UserError, match=r"model: has no model; train it first \(grpo/seed0\)"):
        evaluate_study(small_study(), {"grpo/seed0": results.run("grpo", 0).model}, DataFolder(made[0]), results)
    long = {"problem": "count 1 in " + " ".join(f"a{i}" for i in range(60)), "answer": "1"}
    with pytest.raises(UserError, match="leaves no room for the response"):
        evaluated(data=own(tmp_path, [long]))


def test_repeated_problems_are_one_problem_with_more_responses(evaluated, problems, tmp_path):
    """Five problems, three lines each: the scores of five problems, and as many responses as lines × n."""
    folder = evaluated(data=own(tmp_path, [row | {"id": str(i)} for i, row in enumerate(problems[:5] * 3)]))
    (record,) = model_evaluation(folder).records
    assert (record.problems, record.n, len(record.per_problem)) == (5, 6, 5)
    rows = evaluated_samples(folder, record)
    assert len(rows) == 30 and {*rows["id"]} == {*"01234"}
    assert record.accuracy == pytest.approx((rows["outcome"] == "correct").mean())


def test_stop_strings_end_responses_without_sampling_again(evaluated):
    folder = evaluated()
    whole = evaluated_samples(folder, model_evaluation(folder).records[0])
    stop = next(character for response in whole["response"] for character in response[1:])
    evaluated(small_study(evaluation={"stop": [stop]}))
    ended = evaluated_samples(folder, model_evaluation(folder).records[0])
    assert ended["response"].tolist() == [response.partition(stop)[0] for response in whole["response"]]
    assert not ended["truncated"][whole["response"].str.contains(stop, regex=False)].any()
    assert model_evaluation(folder).protocol["stop"] == [stop]


def test_greedy_responses_are_scored_besides_the_sampled_ones(evaluated, tmp_path):
    """They are those of an evaluation at temperature 0, and the sampled ones do not depend on them."""
    folder = evaluated(small_study(evaluation={"greedy": True}))
    (record,) = model_evaluation(folder).records
    rows = samples(folder.samples)
    right = rows["outcome"][rows["greedy"]] == "correct"
    assert record.greedy == right.astype(float).tolist() and len(right) == 15
    assert len(evaluated_samples(folder, record)) == 30, "the sampled ones alone"
    (greedy,) = model_evaluation(evaluated(small_study(evaluation=GREEDY), out=tmp_path / "b")).records
    assert greedy.per_problem == record.greedy and greedy.greedy is None
    (sampled,) = model_evaluation(evaluated(out=tmp_path / "c")).records
    assert sampled.per_problem == record.per_problem


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    for n, correct in [(5, 0), (5, 2), (6, 6), (4, 1)]:
        outcomes = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))
    with pytest.raises(ValueError, match="k=3, n=2"):
        pass_at_k(2, 1, 3)
    assert powers_of_two(32) == [1, 2, 4, 8, 16, 32] and powers_of_two(6) == [1, 2, 4, 6]


def test_majority():
    for answers, share in ((["7", "7", "3"], 1.0), (["7", "3", "3"], 0.0), (["7", "3"], 0.5), ([None, None], 0.0)):
        assert majority([(answer, answer == "7") for answer in answers]) == share
    assert majority([("1/2", True), ("0.5", True), ("3", False)]) == 1.0, "one right answer, written in two ways"


def test_the_record_of_a_benchmark_by_hand():
    """Two problems of two samples: right on 2 and 1; the second is among the training prompts. Truncated: 9 tokens."""
    table = [("a", "correct", "1", 3), ("a", "correct", "1", 4), ("b", "incorrect", "2", 9), ("b", "correct", "1", 5)]
    rows = [
        EvaluatedSample("set", name, i % 2, False, "?", "1", "", answer, outcome, tokens, tokens == 9)
        for i, (name, outcome, answer, tokens) in enumerate(table)
    ]
    found = score(rows, [1])
    assert (found.n, found.problems, found.per_problem, found.contaminated) == (2, 2, [1.0, 0.5], [1])
    assert found.accuracy == 0.75 and found.pass_at == {1: 0.75, 2: 1.0}
    # One vote each for 1 and 2 on the second problem: half right.
    assert found.majority == 0.75 and score(rows, [], votes=False).majority is None
    assert found.outcomes == {"correct": 3, "incorrect": 1} and (found.tokens, found.truncated) == (21, 0.25)


@pytest.mark.usefixtures("bubblewrap")
def test_a_study_trains_on_programs_and_evaluates_them_beside_sums(evaluated, made, tmp_path):
    """What the tiny model writes stands in a comment, so every third problem is solved whatever it writes."""
    tests = "def check(candidate):\n    assert candidate() == 4\n"
    shared = {"answer": "def f():\n    return 4", "tests": tests, "entry_point": "f"}
    heads = [f"def f():\n    return {4 if n % 3 == 0 else 5} # " for n in range(72)]
    asked = [{"id": f"p{n}", "problem": f"count {n % 10} in a{n % 7} b1", "signature": s} for n, s in enumerate(heads)]
    write_lines(tmp_path / "train.jsonl", [shared | row for row in asked[:60]])
    write_lines(tmp_path / "test.jsonl", [shared | row for row in asked[60:]])
    benchmarks = [{"name": "programs", "source": "test.jsonl"}, {"name": "sums", "source": "count", "size": 5}]
    study = small_study(
        prompt={"program": "{problem}\n"},
        data={"root": str(tmp_path), "train": ["train.jsonl"], "train_size": 40, "validation_size": 10},
        training={"steps": 1, "validate_every": 1},
        evaluation={"benchmarks": benchmarks},
    )
    prepare(study, data := DataFolder(tmp_path / "data"))
    metrics = trained(study, tmp_path / "run", (data.path, made[1]))
    solved = sum(int(p["id"][1:]) % 3 == 0 for p in read_lines(data.validation))
    assert metrics[-1]["validation_accuracy"] == pytest.approx(solved / 10) and 0 < solved < 10
    found = model_evaluation(evaluated(study, data))
    programs, sums = found.records
    assert programs.per_problem == [float(n % 3 == 0) for n in range(60, 72)] and len(sums.per_problem) == 5
    assert programs.majority is None and sums.majority is not None
    assert found.protocol["grader"].endswith(f"code-6 ({isolation()}, 20 s, 1024 MiB)")
