"""A study whose problems are programs: prepared, trained on, evaluated beside sums, recorded with its sandbox."""

import json
from typing import Any

import pytest

from policygrain.data.sources import prepare
from policygrain.evaluate.evaluation import evaluate
from policygrain.files import read_json_lines
from policygrain.grading.sandbox import isolation
from policygrain.paths import DataFolder, RunFolder, StudyFolder
from policygrain.results import model_evaluation, run_metrics

from ..support.small import small_study, train_small


def problem(number: int) -> dict[str, Any]:
    """What the tiny model writes stands in a comment, so every third problem is solved whatever it writes."""
    return {
        "id": f"p{number}",
        "problem": f"count {number % 10} in a{number % 7} b1",
        "answer": "def f():\n    return 4",
        "tests": "def check(candidate):\n    assert candidate() == 4\n",
        "entry_point": "f",
        "signature": f"def f():\n    return {4 if number % 3 == 0 else 5} # ",
    }


@pytest.mark.usefixtures("bubblewrap")
def test_a_study_trains_on_programs_and_evaluates_them_beside_sums(made, tmp_path):
    for name, numbers in (("train", range(60)), ("test", range(60, 72))):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(problem(n)) + "\n" for n in numbers))
    study = small_study(
        prompt={"program": "{problem}\n"},
        data={"root": str(tmp_path), "train": ["train.jsonl"], "train_size": 40, "validation_size": 10},
        training={"steps": 1, "validate_every": 1},
        evaluation={
            "benchmarks": [{"name": "programs", "source": "test.jsonl"}, {"name": "sums", "source": "count", "size": 5}]
        },
    )
    data = DataFolder(tmp_path / "data")
    prepare(study, data)
    run = RunFolder(train_small(study, tmp_path / "run", data.path, made[1]))
    rows = run_metrics(run)
    solved = sum(int(p["id"][1:]) % 3 == 0 for p in read_json_lines(data.validation))
    assert rows[-1]["validation_accuracy"] == pytest.approx(solved / 10) and 0 < solved < 10
    results = StudyFolder(tmp_path / "results")
    evaluate(study, {"start/seed0": made[1]}, data, results)
    found = model_evaluation(results.evaluation("start/seed0"))
    programs, sums = found.records
    assert programs.per_problem == [float(n % 3 == 0) for n in range(60, 72)] and len(sums.per_problem) == 5
    assert programs.majority is None and sums.majority is not None
    assert found.protocol["grader"].endswith(f"code-5 ({isolation()}, 20 s, 1024 MiB)")
