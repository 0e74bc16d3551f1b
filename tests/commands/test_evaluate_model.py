"""Evaluating models without a study, and claims about runs of any trainer: records, tables, what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.evaluate.any_model import asked, leaderboard, named
from policygrain.paths import StudyFolder
from policygrain.records import BenchmarkRecord, EvaluationFacts, ModelEvaluation, write_record
from policygrain.results import model_evaluation

from ..support.files import write_lines
from . import CASES

OPTIONS = ["--benchmarks", "count,largest", "--size", "5", "--max-tokens", "8", "--engine", "transformers"]
SAMPLED = [*OPTIONS, "--samples", "2", "--temperature", "1", "--grader", "numeric", "--prompt", "{problem}\n"]


def test_one_line_evaluates_a_model_and_another_one_joins_it(made, tmp_path, capsys):
    out, model, other = tmp_path / "out", tmp_path / "first", tmp_path / "second"
    for copy in (model, other):
        shutil.copytree(made[1], copy)
    assert main(["evaluate-model", str(model), *SAMPLED, "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[3:]] == [["first", name] for name in ("average", "count", "largest")]
    folder = StudyFolder(out).evaluation("first/seed0")
    found = model_evaluation(folder)
    assert [(r.benchmark, r.n, r.problems) for r in found.records] == [("count", 2, 5), ("largest", 2, 5)]
    stamp = folder.samples.stat().st_mtime_ns
    assert main(["evaluate-model", str(model), f"copy={other}", *SAMPLED, "--out", str(out)]) == 0
    assert folder.samples.stat().st_mtime_ns == stamp, "it is not sampled again"
    table = (out / "leaderboard.md").read_text()
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    printed = capsys.readouterr().out
    assert len(rows) == 6 and all(cell.strip("| ") in printed for row in rows for cell in row)
    assert [row[1:] for row in rows[:3]] == [row[1:] for row in rows[3:]], "the same weights and seeds"
    assert {row[0].strip("| ") for row in rows} == {"first", "copy"}
    # Another protocol does not overwrite the results, and neither does one that cannot be read.
    assert main(["evaluate-model", str(model), *SAMPLED, "--samples", "3", "--out", str(out)]) == 2
    assert "another protocol (other benchmarks)" in capsys.readouterr().err
    (out / "protocol.json").write_text("[")
    assert main(["evaluate-model", str(model), *SAMPLED, "--out", str(out)]) == 2
    assert re.search("protocol.json: not JSON.*another folder with --out", capsys.readouterr().err)
    assert (out / "leaderboard.md").read_text() == table


@pytest.mark.parametrize(("model", "arguments", "says"), CASES["models"])
def test_what_cannot_be_asked_for_is_named(model, arguments, says, made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    command = ["evaluate-model", model or str(made[1]), *arguments]
    assert main([*command, "--engine", "transformers", "--grader", "numeric", "--out", "out"]) == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize(("options", "found"), CASES["sampling"])
def test_what_is_not_asked_for_is_as_registered(options, found):
    (benchmark,) = asked(["aime24"], **options, grader="math", engine="auto", seed=7).benchmarks
    assert [benchmark.sampling.n, benchmark.sampling.temperature, benchmark.sampling.top_p] == found


def test_names_of_models():
    models = {"Qwen2.5-1.5B": "Qwen/Qwen2.5-1.5B", "seed0": "results/laptop/runs/tepo/seed0/model"}
    assert named([*models.values(), "mine=/some/where/else"]) == models | {"mine": "/some/where/else"}


def test_the_table_by_hand(tmp_path):
    """Two problems, two responses each: right on 2 and 0; the other model is right on none and could not be graded."""
    results = StudyFolder(tmp_path)
    for name, scores, outcomes in (
        ("worse", [0.0, 0.0], {"unparsable": 1, "timeout": 1, "error": 1, "incorrect": 1}),
        ("better", [1.0, 0.0], {"correct": 2, "incorrect": 2}),
    ):
        mean = sum(scores) / 2
        fields = {"benchmark": "count", "n": 2, "problems": 2, "accuracy": mean, "per_problem": scores, "tokens": 8}
        fields |= {"contaminated": [], "pass_at": {1: mean, 2: mean}, "majority": mean, "outcomes": outcomes}
        facts = EvaluationFacts(seconds={}, hardware="a machine", versions={})
        record = BenchmarkRecord.model_validate(fields | {"truncated": 0.25})
        evaluation = ModelEvaluation(model=name, key="k", protocol={}, facts=facts, records=[record])
        write_record(results.evaluation(f"{name}/seed0").record, evaluation)
    header, rows = leaderboard(results)
    shown = [dict(zip(header, row, strict=True)) for row in rows]
    assert [row["model"] for row in shown] == ["better", "worse"]
    low, high = map(float, re.findall(r"[\d.]+", shown[0]["accuracy"])[1:])
    assert shown[0]["accuracy"].startswith("50.0 [") and 0 < low < 50 < high < 100
    assert (shown[0]["pass@2"], shown[0]["maj@n"], shown[0]["unparsable"]) == ("50.0", "50.0", "0.0")
    assert [shown[1][name] for name in ("unparsable", "not graded", "truncated")] == ["25.0", "50.0", "25.0"]


CLAIM = ["claim", "--a", "a_*.jsonl", "--b", "b_*.jsonl", "--metric", "reward"]


@pytest.fixture
def _runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, level in (("a", 0.6), ("b", 0.5)):
        for seed in range(3):
            rewards = [level * (1 + seed / 50) + k / 100 + (k * seed % 3) / 200 for k in range(1, 6)]
            write_lines(Path(f"{side}_seed{seed}.jsonl"), [{"step": k, "reward": r} for k, r in enumerate(rewards, 1)])
    Path("binary.jsonl").write_bytes(b"\x89PNG\xff")


@pytest.mark.usefixtures("_runs")
def test_text_json_and_figure(capsys):
    margin = [*CLAIM, "--margin", "0.2", "--last", "2"]
    assert main([*margin, "--figure", "claim.png"]) == 0
    out = capsys.readouterr().out
    assert "reward of a is above that of b: holds, smaller than 0.2" in out and "mean of the last 2 values" in out
    assert Path("claim.png").read_bytes().startswith(b"\x89PNG")
    assert main([*margin, "--json", "--unpaired", "--claimed", "below"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["pairing"] == "unpaired, as asked" and data["verdict"] == "opposite"
    assert data["difference"]["mean"] == pytest.approx(0.102) and len(data["runs"]["a"]) == 3
    gate = ["--fail-unless", "holds", "--table"]
    assert main([*margin, *gate, "latex"]) == 0 and r"\toprule" in capsys.readouterr().out
    assert main([*margin, *gate, "markdown", "--claimed", "below"]) == 1 and "| opposite |" in capsys.readouterr().out


@pytest.mark.usefixtures("_runs")
@pytest.mark.parametrize(("options", "says"), CASES["claims"])
def test_a_mistake_is_one_line(options, says, capsys):
    assert main([*CLAIM, *options]) == 2
    printed, error = capsys.readouterr()
    assert not printed and says in error and error.count("\n") == 1
