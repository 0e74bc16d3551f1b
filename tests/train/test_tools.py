"""Training on problems with a tool: its tokens are in no loss and no count, and a resumed run is the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.data.characters import BOXED, CHARACTERS
from policygrain.data.sources import prepare
from policygrain.data.tools import calculator
from policygrain.errors import Stopped
from policygrain.evaluate.evaluation import evaluate
from policygrain.files import read_json_lines
from policygrain.instruments.estimators import Estimation
from policygrain.instruments.instrument import measure
from policygrain.instruments.rounds import Round
from policygrain.model.engine import Response
from policygrain.paths import DataFolder, RunFolder, StartFolder, StudyFolder
from policygrain.records import TokenView, read_record
from policygrain.results import run_metrics
from policygrain.study import Study
from policygrain.train import rollouts
from policygrain.train.rollouts import Collector, Rollouts
from policygrain.train.start_model import build_start_model
from policygrain.train.stopping import Stop

from ..support.small import assert_same_end, small_study, train_small

METHODS: dict[str, Any] = {
    "turn": {"base": "token", "ratio": {"name": "block", "layout": "turns", "weights": "uniform"}},
    "penalty": {"base": "tepo", "sampler": {"dynamic": False}},
    "windows": {"base": "mpo", "sampler": {"dynamic": False}},
    "credit": {"base": "token", "advantage": {"name": "gigpo"}},
}


class AfterSteps(Stop):
    """Stops a run after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def after_step(self, seconds: float) -> str | None:
        self.left -= 1
        return None if self.left else "a test"


def with_tool(trainer: str = "policygrain", call_reward: float = 0.0, **changes: Any) -> Study:
    """The small study on problems with the calculator; the initial model calls it."""
    return small_study(
        model={
            "tiny": {"hidden": 32, "intermediate": 32, "layers": 2, "heads": 1, "context": 128},
            "warm_start": {"steps": 120, "mixed_steps": 120, "batch_size": 16, "direct_share": 0.4},
        },
        data={"train": ["calculation"]},
        training={"max_tokens": 60, "off_policy_steps": 1, "trainer": trainer, "call_reward": call_reward},
        evaluation={"benchmarks": [{"name": "calculation", "source": "calculation", "size": 5}]},
        **changes,
    )


@pytest.fixture(autouse=True)
def answers_without_a_call_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model solves no problem, and equal rewards have no gradient; so those without a call are right."""

    def by_first_token(problems: object, responses: list[Response], *_: object) -> list[str]:
        return ["correct" if response.ids[0] == CHARACTERS.index(BOXED) else "incorrect" for response in responses]

    monkeypatch.setattr(rollouts, "grade_responses", by_first_token)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, study = tmp_path_factory.mktemp("tools"), with_tool()
    prepare(study, DataFolder(folder / "data"))
    build_start_model(study, 0, DataFolder(folder / "data"), StartFolder(folder / "start"))
    return folder / "data", folder / "start"


def test_a_stopped_run_ends_as_an_undisturbed_one(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Batches that wait in the checkpoint have the masks of their responses."""
    study = with_tool(methods=METHODS, experiments={"headline": {"methods": ["turn"]}})
    train_small(study, tmp_path / "whole", *made)
    with pytest.raises(Stopped):
        train_small(study, tmp_path / "stopped", *made, stop=AfterSteps(2))
    train_small(study, tmp_path / "stopped", *made)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


def test_right_calls_are_rewarded(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right call of these small models is an accident, so all are."""
    monkeypatch.setattr(rollouts, "right_calls", lambda written, solution: [True] * written.count("="))
    collected: list[Rollouts] = []
    collect = Collector.collect
    monkeypatch.setattr(Collector, "collect", lambda *arguments: collected.append(collect(*arguments)) or collected[-1])
    study = with_tool(methods=METHODS, experiments={"headline": {"methods": ["credit"]}}, call_reward=0.25)
    train_small(study, tmp_path / "run", *made)
    calls = [[len(of_response) for of_response in row] for batch in collected for row in batch.call_rewards]
    rewards = torch.cat([batch.rewards for batch in collected])
    assert torch.equal(rewards, torch.cat([b.correct for b in collected]) + 0.25 * torch.tensor(calls))
    assert sum(map(sum, calls)) > 8


@pytest.mark.trl
@pytest.mark.parametrize("name", ["turn", "penalty", "windows", "credit"])
def test_a_run_by_trl_is_the_run_of_the_loop_but_for_rounding(
    name: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    rows = {}
    for trainer in ("policygrain", "trl"):
        study = with_tool(methods=METHODS, experiments={"headline": {"methods": [name]}}, trainer=trainer)
        run = RunFolder(train_small(study, tmp_path / trainer, *made))
        masks = [(sample.tokens, sample.in_loss) for sample in read_record(TokenView, run.tokens(0), "").samples]
        rows[trainer] = (masks, [row for row in run_metrics(run) if row["step"] < 2])
    (samples, loop), (same_samples, trl) = rows.values()
    assert samples == same_samples and any(not all(in_loss) for _, in_loss in samples)
    for row, found in zip(loop, trl, strict=True):
        row.pop("mask_share", None), found.pop("mask_share", None)  # by the sign of changes that are rounding alone
        assert found == pytest.approx(row, rel=2e-3, abs=1e-5)
    assert loop[1]["gradient_norm"] > 0 and loop[1]["ratio_variance"] > 0


@pytest.mark.parametrize("name", ["token", "turn", "sequence", "penalty", "windows", "credit"])
def test_tokens_of_a_tool_are_in_no_loss_and_no_count(name: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    """Two prompts with four responses each, all of which are in the record of the first step's tokens."""
    training = {"prompts_per_step": 2, "steps": 2, "max_tokens": 60}
    study = with_tool(methods=METHODS, experiments={"headline": {"methods": [name]}})
    study = study.model_copy(update={"training": study.training.model_copy(update=training | {"off_policy_steps": 0})})
    run = RunFolder(train_small(study, tmp_path / "run", *made))
    samples, first = read_record(TokenView, run.tokens(0), "").samples, run_metrics(run)[0]
    assert len(samples) == 8
    calls = 0
    for sample in samples:
        written = ""
        for place, (token, in_loss) in enumerate(zip(sample.tokens, sample.in_loss, strict=True)):
            if not in_loss:
                assert sample.log_prob[place] == sample.log_prob_old[place] == sample.entropy_change[place] == 0
                assert sample.ratio[place] == 1 and not sample.clipped_low[place] and not sample.clipped_high[place]
            if token == "=":
                output = calculator(written + token)
                left = sample.tokens[place + 1 : place + 1 + len(output)]
                assert output.startswith("".join(left)) and not any(sample.in_loss[place + 1 :][: len(left)])
                calls += 1
            written += token
    assert calls > 8, "most responses call"
    policy = [sum(sample.in_loss) for sample in samples]
    assert first["response_length_mean"] == pytest.approx(sum(policy) / 8)
    assert first["total_tokens"] == sum(policy) < sum(len(sample.tokens) for sample in samples)
    assert first["mismatch_max"] < 1e-4 and first["gradient_norm"] > 0


def test_instruments_and_evaluation_have_tools_as_well(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine, trainer and true gradient agree on which tokens are the policy's, or these would raise or differ."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    section = {"reference": "token", "methods": ["token", "turn", "sequence"], "steps": [1], "prompts_per_update": 2}
    study = with_tool(
        methods=METHODS,
        rounds={**section, "updates": [2], "pools": 1, "samples": 1},
        estimators={**section, "updates": [0, 1], "batches": 6, "true_prompts": 150},
    )
    data, start = DataFolder(made[0]), str(made[1])
    rounds = measure(Round, study, 0, start, data, tmp_path / "rounds.json")
    assert [row.method for row in rounds.rows] == section["methods"]
    assert all(math.isfinite(row.gradient_norm) and row.gradient_norm > 0 for row in rounds.rows)
    rows = measure(Estimation, study, 0, start, data, tmp_path / "estimators.json").rows
    cosines = {(row.updates, row.estimator): row.cosine[0] for row in rows}
    assert cosines[0, "token"] == pytest.approx(cosines[0, "turn"]) == pytest.approx(cosines[0, "sequence"])
    assert len({round(cosines[1, name], 6) for name in section["methods"]}) == 3, "off-policy grains differ"
    whole, stopped = StudyFolder(tmp_path / "whole"), StudyFolder(tmp_path / "stopped")
    evaluate(study, {"start": made[1]}, data, whole)
    monkeypatch.setattr("policygrain.evaluate.evaluation.grade", stop)
    with pytest.raises(KeyboardInterrupt):
        evaluate(study, {"start": made[1]}, data, stopped)
    monkeypatch.undo()
    evaluate(study, {"start": made[1]}, data, stopped)
    one, other = (folder.evaluation("start").samples("calculation") for folder in (whole, stopped))
    assert one.read_bytes() == other.read_bytes(), "masks of stored responses are read back"
    for sample in read_json_lines(one):
        calls = sample["response"].count("=")
        assert sample["tokens"] <= len(sample["response"]) + 1 - 2 * calls * sample["finished"]
