"""Scores, intervals, records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from policygrain.analysis.statistics import average_interval, interval, over_seeds, paired_difference
from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.evaluate.parallel import draw_side_by_side
from policygrain.evaluate.run import evaluate
from policygrain.evaluate.sampling import ask, complete
from policygrain.evaluate.scores import majority, pass_at_k, powers_of_two
from policygrain.files import read_json_lines
from policygrain.model.loading import load_model
from policygrain.rollout.torch_engine import TorchEngine
from policygrain.tasks.problem import read_problems
from policygrain.tasks.prompts import PromptRenderer

from ..support.small import SMALL, make_start, small_study


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n, correct in [(5, 0), (5, 2), (6, 6), (4, 1)]:
        outcomes = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))
    with pytest.raises(ValueError, match="k=3, n=2"):
        pass_at_k(2, 1, 3)
    assert powers_of_two(32) == [1, 2, 4, 8, 16, 32] and powers_of_two(6) == [1, 2, 4, 6]


def test_majority() -> None:
    assert majority(["7", "7", "3"], [True, True, False]) == 1.0
    assert majority(["7", "3", "3"], [True, False, False]) == 0.0
    assert majority(["7", "3"], [True, False]) == 0.5
    assert majority([None, None], [False, False]) == 0.0


def test_intervals_have_their_coverage() -> None:
    """Of 200 studies of 3 seeds × 150 problems, about 95% of the intervals hold the truth (few seeds: a bit fewer)."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        difficulty, skill = rng.normal(size=150), rng.normal(0.5, 0.1, size=(3, 1))
        p = 1 / (1 + np.exp(-(skill + difficulty)))
        result = interval((rng.random((3, 150)) < p).astype(float), replicates=400)
        truth = 0.6019  # E[sigmoid(N(0.5, 1.005))], by numerical integration
        held += result.low <= truth <= result.high
    assert 0.88 <= held / 200 <= 1.0


def test_pairing_removes_what_problems_share() -> None:
    rng = np.random.default_rng(1)
    shared = rng.random((3, 200)) < 0.5
    better = shared | (rng.random((3, 200)) < 0.1)
    paired = paired_difference(better.astype(float), shared.astype(float))
    assert paired.low > 0 and paired.high - paired.low < 0.09
    a, b = interval(better.astype(float)), interval(shared.astype(float))
    assert a.low < b.high, "unpaired intervals overlap here, which is why pairing matters"


def test_students_interval_and_averages() -> None:
    half = 4.3027 * 0.1 / 3**0.5  # Student's t for two degrees of freedom
    assert over_seeds(np.array([0.4, 0.5, 0.6])) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-4)
    ones, zeros = np.ones((2, 10)), np.zeros((2, 30))
    assert average_interval([ones, zeros]).mean == 0.5  # benchmarks count the same, not problems


def test_records_keep_every_sample_and_are_not_made_twice(tmp_path: Path) -> None:
    data, start = make_start(tmp_path)
    study = small_study()
    out = tmp_path / "records.jsonl"
    evaluate(study, {"start/seed0": start}, data, out)
    (record,) = read_json_lines(out)
    samples = tmp_path / "start" / "seed0" / "count.jsonl"
    rows = read_json_lines(samples)
    assert len(rows) == 15 * 2 == sum(record["outcomes"].values())
    assert record["accuracy"] == sum(r["outcome"] == "correct" for r in rows) / 30
    assert record["accuracy"] == pytest.approx(np.mean(record["per_problem"]))
    assert record["pass_at"]["2"] >= record["pass_at"]["1"] == pytest.approx(record["accuracy"])
    stamp = samples.stat().st_mtime_ns
    evaluate(study, {"start/seed0": start}, data, out)
    assert samples.stat().st_mtime_ns == stamp
    # Another protocol samples again, and says that the two do not belong in one table.
    other = small_study(evaluation={"sampling": {"n": 1, "temperature": 0.0, "max_tokens": 12}})
    evaluate(other, {"start/seed0": start}, data, out)
    assert samples.stat().st_mtime_ns != stamp
    assert json.loads(out.read_text().splitlines()[0])["protocol_key"] != record["protocol_key"]


def test_parts_are_put_together_and_nothing_is_drawn_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, start = make_start(tmp_path)
    study, models, out = small_study(), {"start/seed0": start}, tmp_path / "out" / "records.jsonl"
    evaluate(study, models, data, tmp_path / "whole" / "records.jsonl")
    store = tmp_path / "out" / "start" / "seed0"
    evaluate(study, models, data, out, part=(1, 3))
    evaluate(study, models, data, out, part=(0, 3))
    assert not out.exists() and len(list(store.glob("sampled-*.jsonl"))) == 2
    # A crash left half a line behind: that response, and the part that is missing, are drawn by the call that judges.
    torn = next(iter(store.glob("sampled-*-1of3.jsonl")))
    torn.write_text(torn.read_text()[:-20])
    asked: list[int] = []
    generate = TorchEngine.generate
    monkeypatch.setattr(
        TorchEngine, "generate", lambda self, requests: asked.append(len(requests)) or generate(self, requests)
    )
    evaluate(study, models, data, out)
    assert asked == [10 + 1]
    assert not list(store.glob("sampled-*.jsonl"))
    for name in ("count.jsonl",):
        assert (store / name).read_bytes() == (tmp_path / "whole" / "start" / "seed0" / name).read_bytes()


def test_engines_side_by_side_draw_what_one_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two processes of the second of two parts, then the rest here: the same samples as in one go."""
    data, start = make_start(tmp_path)
    study, models = small_study(), {"start/seed0": start}
    evaluate(study, models, data, tmp_path / "whole" / "records.jsonl")
    config, out = tmp_path / "study.yaml", tmp_path / "out" / "records.jsonl"
    config.write_text(yaml.safe_dump(SMALL))
    command = ["evaluate", "--config", str(config), "--data", str(data), "--out", str(out), f"start/seed0={start}"]
    assert main([*command, "--part", "1/2", "--engines", "2"]) == 0
    store = tmp_path / "out" / "start" / "seed0"
    drawn = sorted(store.glob("sampled-*.jsonl"))
    assert [(p.name.split("-")[-1], len(read_json_lines(p))) for p in drawn] == [("1of4.jsonl", 8), ("3of4.jsonl", 7)]
    assert "engine 2 of 2: load" in capfd.readouterr().err
    assert main(command) == 0
    assert (store / "count.jsonl").read_bytes() == (tmp_path / "whole/start/seed0/count.jsonl").read_bytes()


def test_engines_that_fail_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"of 2 engines, 1 \(exit code 2\), 2 \(exit code 2\) failed"):
        draw_side_by_side(["methods"], (0, 1), 2)
    assert "engine 1 of 2: policygrain: error: unrecognized arguments: --part 0/2" in capfd.readouterr().err


def test_a_merge_says_what_is_missing(tmp_path: Path) -> None:
    data, start = make_start(tmp_path)
    study = small_study()
    evaluate(study, {"start/seed0": start}, data, tmp_path / "out.jsonl", part=(0, 2))
    store = tmp_path / "start" / "seed0"
    (path,) = store.glob("sampled-*.jsonl")
    key = path.name.split("-")[1]
    tokenizer = load_model(str(start))[1]
    asked = ask(
        study, {"count": read_problems(data / "benchmarks" / "count.jsonl")}, PromptRenderer(tokenizer, study.prompt)
    )
    with pytest.raises(
        UserError, match=r"15 of 30 responses are missing \(count\); parts that are there: sampled-.*-0of2"
    ):
        complete(asked, store, key)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    data, _ = make_start(tmp_path)
    with pytest.raises(UserError, match=r"model: no model here; train it first \(grpo/seed0\)"):
        evaluate(small_study(), {"grpo/seed0": tmp_path / "nowhere" / "model"}, data, tmp_path / "out.jsonl")


def test_a_prompt_too_long_for_the_context_is_named(tmp_path: Path) -> None:
    data, start = make_start(tmp_path)
    long = {"problem": "count 1 in " + " ".join(f"a{i}" for i in range(60)), "answer": "1"}
    (data / "benchmarks" / "count.jsonl").write_text(json.dumps(long) + "\n")
    with pytest.raises(UserError, match="leaves no room for the response"):
        evaluate(small_study(), {"start/seed0": start}, data, tmp_path / "out.jsonl")
