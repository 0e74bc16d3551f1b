"""One difference has one interval, wherever it is shown."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from policygrain.analysis import difference, measures, model_comparison
from policygrain.analysis.claims import Comparison, compare
from policygrain.analysis.evaluated_models import find
from policygrain.cli import main
from policygrain.figures import tables
from policygrain.results import StudyResults
from policygrain.study import parse_study

from ..conftest import ROOT
from ..support.made_up import make_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The laptop study and a variant of TEPO, with scores drawn at random; each model has its own rate."""
    experiments = {"headline": {"methods": ["grpo", "dapo", "tepo", "mpo"]}, "variants": {"methods": ["tepo_v1"]}}
    content = {"base": "studies/laptop-full.yaml", "name": "random", "seeds": [0, 1, 2, 3], "experiments": experiments}
    there = make_up(parse_study(content, ROOT / "random.yaml"), tmp_path_factory.mktemp("random"), {})
    rng = np.random.default_rng(0)
    for path in sorted(there.glob("**/evaluation/records.json")):
        content = json.loads(path.read_text())
        for record in content["records"]:
            right = (rng.random(record["problems"]) < rng.uniform(0.3, 0.7)).astype(float)
            record |= {"per_problem": right.tolist(), "accuracy": right.mean()}
        path.write_text(json.dumps(content))
    return there


def test_tables_claims_and_commands_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = StudyResults(folder)
    row = tables.ablation(records)[0].dropna(subset="difference").iloc[0]
    assert (row["arm"], row["compared_with"]) == ("tepo_v1", "tepo")
    pair = measures.accuracy_difference(records, "tepo_v1", "tepo")
    assert tuple(row[["difference", "low", "high"]]) == pytest.approx((pair.mean, pair.low, pair.high), abs=0.01)
    expected = measures.accuracy_difference(records, "dapo", "tepo")
    short = f"{expected.mean:+.1f} [{expected.low:+.1f}, {expected.high:+.1f}]"
    assert main(["show", str(folder), "--all", "--against", "tepo"]) == 0
    block = capsys.readouterr().out.split("average of the benchmarks")[1]
    shown = re.search(r"^ +dapo .*?([+-]\S+ \[\S+, \S+\])(?: \*)?$", block, flags=re.M)
    assert shown and shown[1] == short

    pair = measures.accuracy_difference(records, "grpo", "tepo")
    line = next(line for line in tables.results(records)[1].splitlines() if line.startswith("| GRPO − TEPO |"))
    assert f"| {pair.mean:+.1f} [{pair.low:+.1f}, {pair.high:+.1f}] |" in line
    claim = compare(records, Comparison(statistic="accuracy", of="tepo", than="grpo", claimed="above"))  # type: ignore[call-arg]
    assert (claim.low, claim.high) == pytest.approx((-pair.high, -pair.low), abs=1e-9)
    groups = {g.name: g for g in find([folder])}
    models = model_comparison.difference(groups["grpo"], groups["tepo"], records.benchmarks)
    assert models is not None and models.times(100).numbers() == pytest.approx(pair.numbers())


def test_start_models_are_compared_with_the_seeds_that_began_from_them(folder: Path, tmp_path: Path) -> None:
    """Two initial models, and two seeds from each; every model has its own rate."""
    shutil.copytree(folder, tmp_path / "random")
    study = yaml.safe_load((tmp_path / "random" / "study.yaml").read_text())
    study["model"]["starts"] = 2
    (tmp_path / "random" / "study.yaml").write_text(yaml.safe_dump(study))
    for seed in (2, 3):
        shutil.rmtree(tmp_path / "random" / "start" / f"seed{seed}")
    records = StudyResults(tmp_path / "random")
    groups = {g.name: g for g in find([tmp_path / "random"])}
    pair = measures.accuracy_difference(records, "grpo", "start")
    assert (pair.n, pair.unit) == (2, "initial models")
    for one, other, sign in (("grpo", "start", 100.0), ("start", "grpo", -100.0)):
        models = model_comparison.difference(groups[one], groups[other], records.benchmarks)
        assert models is not None and models.n == 2
        assert sign * models.mean == pytest.approx(pair.mean)
        assert sorted((sign * models.low, sign * models.high)) == pytest.approx((pair.low, pair.high))
    own = next(g for g in find([folder]) if g.path.name == "grpo")
    assert model_comparison.difference(groups["grpo"], own, records.benchmarks) is None, "each seed has its own"
    other = tmp_path / "a-model"  # evaluated by itself, so its name is no seed
    shutil.copytree(folder / "runs" / "grpo" / "seed0", other)
    (alone,) = find([other])
    assert model_comparison.difference(alone, groups["start"], records.benchmarks) is None


def test_the_only_start_model_is_compared_with_every_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiments = {"headline": {"methods": ["grpo", "tepo"]}}
    content = {"base": "studies/laptop-full.yaml", "name": "one_start", "seeds": [0, 1, 2], "experiments": experiments}
    content["model"] = {"starts": 1}
    there = make_up(parse_study(content, ROOT / "one_start.yaml"), tmp_path / "one_start", {})
    assert [path.name for path in (there / "start").iterdir()] == ["seed0"]
    rights = {"start/seed0": 3, "runs/grpo/seed0": 4, "runs/grpo/seed1": 6, "runs/grpo/seed2": 8}
    for model, right in rights.items():
        path = there / model / "evaluation" / "records.json"
        record = json.loads(path.read_text())
        for row in record["records"]:
            row["per_problem"] = [float(i < right) for i in range(row["problems"])]
            row["accuracy"] = right / row["problems"]
        path.write_text(json.dumps(record))
    records = StudyResults(there)
    one, start, _ = measures.paired_scores(records, "grpo", "start")
    assert all(scores.sum(1).tolist() == [4, 6, 8] for scores in one)
    assert all(scores.sum(1).tolist() == [3, 3, 3] for scores in start)
    # 1, 3 and 5 of 12 problems: 25 points on average.
    expected = difference(one, start).times(100)
    assert expected.mean == pytest.approx(25) and (expected.n, expected.unit) == (3, "training seeds")
    short = f"{expected.mean:+.1f} [{expected.low:+.1f}, {expected.high:+.1f}]"
    text = tables.results(records)[1]
    assert f"| GRPO − initial model | {short} |" in text and "the error of its score is not in the intervals" in text
    assert main(["show", str(there), "--all", "--against", "start"]) == 0
    block = capsys.readouterr().out.split("average of the benchmarks")[1]
    assert re.search(rf"^ +grpo .*{re.escape(short)}", block, flags=re.M), block
