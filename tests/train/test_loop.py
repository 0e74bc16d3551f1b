"""The real training loop on a tiny model: every preset, exact resume, batches sampled ahead, engines."""

from __future__ import annotations

import copy
import errno
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from policygrain.cli import STOPPED, main
from policygrain.errors import UserError
from policygrain.files import read_json_lines
from policygrain.model.engine import Request, Response
from policygrain.model.loading import load_model
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import method, method_names
from policygrain.paths import RunFolder
from policygrain.results import run_metrics
from policygrain.train import loop
from policygrain.train.policy import Policy, open_policy
from policygrain.train.rollout_batch import TrainingBatch
from policygrain.train.update import update

from ..support.small import SMALL, assert_same_end, small_study, train_small, write_study


@pytest.mark.slow
@pytest.mark.parametrize("name", method_names())
def test_every_preset_trains(name: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    # GEPO's ratio is not near 1 for short responses: its range would leave no gradient in two steps.
    wide = {"gepo": {"clip": {"low": 1.0, "high": 100.0}}} if name == "gepo" else {}
    study = small_study(training={"steps": 2}, methods=wide, experiments={"headline": {"methods": [name]}})
    rows = run_metrics(RunFolder(train_small(study, tmp_path / "run", *made)))
    assert [r["step"] for r in rows] == [0, 1, 2]
    before, after = (load_model(str(p))[0].state_dict() for p in (made[1], tmp_path / "run" / "model"))
    assert any(not torch.equal(before[k], after[k]) for k in before), "nothing was learned"
    assert all(torch.isfinite(v).all() for v in after.values())


@pytest.mark.slow
def test_a_killed_run_ends_as_the_undisturbed_one(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed at any moment, by SIGKILL; the same command again gives the same metrics and the same weights.

    The method makes random choices (Clip-Cov), how many prompts a step uses is not fixed (dynamic sampling), and each
    batch is passed over twice.
    """
    content = copy.deepcopy(SMALL)
    content["training"] |= {"steps": 12, "epochs": 2}
    content["methods"] = {"random": {"base": "clip_cov", "sampler": {"dynamic": True}}}
    content["experiments"] = {"headline": {"methods": ["random"]}}
    config = write_study(tmp_path / "study.yaml", content)
    command = ["train", "--config", str(config), "--results", str(made[0].parent), "--run-dir"]
    assert main([*command, str(tmp_path / "whole")]) == 0

    broken = tmp_path / "broken"
    killed = [sys.executable, "-m", "policygrain.cli", *command, str(broken)]
    process = subprocess.Popen(killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (broken / "checkpoints" / "step00004").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "summary.json").exists(), "it ended before it was killed"
    assert main([*command, str(broken)]) == 0
    assert_same_end(broken, tmp_path / "whole")


@pytest.fixture(scope="module")
def whole(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small study's run, undisturbed."""
    return train_small(small_study(), tmp_path_factory.mktemp("whole") / "run", *made)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_saves_the_run_and_the_same_command_resumes_it(
    number: signal.Signals,
    made: tuple[Path, Path],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_study(tmp_path / "study.yaml", {**SMALL, "training": {**SMALL["training"], "checkpoint_every": 100}})
    run = tmp_path / "run"
    command = ["train", "--config", str(config), "--results", str(made[0].parent), "--run-dir", str(run)]
    update = loop.update

    def signalled(*arguments: Any) -> dict[str, float]:
        os.kill(os.getpid(), number)
        return update(*arguments)

    def unnoticed(number: int, frame: object) -> None:
        raise AssertionError(f"{signal.Signals(number).name} would have ended the process")

    monkeypatch.setattr(loop, "update", signalled)
    before = signal.signal(number, unnoticed)
    try:
        assert main(command) == STOPPED == 75
        assert signal.getsignal(number) is unnoticed
    finally:
        signal.signal(number, before)
    said = capsys.readouterr().err
    assert f"stopped by {number.name} after step 1 of 4, and saved. The same command resumes." in said
    assert [row["step"] for row in read_json_lines(run / "metrics.jsonl")] == [0]
    monkeypatch.undo()
    assert main(command) == 0
    assert_same_end(run, whole)


def test_two_passes_over_a_batch_are_two_updates_with_the_same_old_log_probs(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch is the one that a run of a single pass trained on."""
    settings = {"steps": 1, "updates_per_batch": 1, "group": 12}
    batches: list[TrainingBatch] = []

    def kept(policy: Policy, batch: TrainingBatch, *rest: Any) -> dict[str, float]:
        batches.append(batch)
        return update(policy, batch, *rest)

    monkeypatch.setattr(loop, "update", kept)
    train_small(small_study(training=settings), tmp_path / "once", *made)
    assert "all importance ratios are 1" in capsys.readouterr().err
    (batch,) = batches
    study = small_study(training=settings | {"epochs": 2})
    rows = run_metrics(RunFolder(train_small(study, tmp_path / "twice", *made)))
    assert "all importance ratios are 1" not in capsys.readouterr().err
    assert rows[-1]["total_updates"] == 2 and rows[-1]["total_samples"] == 4 * 12

    grpo, training = method("grpo"), study.training
    policy = open_policy(str(made[1]), study.model, grpo, training, seed=0)
    by_hand = [update(policy, batch, grpo, training) for _ in range(2)]
    assert by_hand[0]["kl_old"] < 1e-9 < by_hand[1]["kl_old"], "old log-probabilities are those of before both"
    assert rows[0]["kl_old"] == pytest.approx(by_hand[1]["kl_old"] / 2, rel=1e-3)
    trained = load_model(str(tmp_path / "twice" / "model"))[0].state_dict()
    once = load_model(str(tmp_path / "once" / "model"))[0].state_dict()
    for name, weights in policy.model.state_dict().items():
        assert torch.allclose(trained[name], weights, atol=1e-5)
    assert any(not torch.allclose(once[name], trained[name], atol=1e-4) for name in once)


def test_a_batch_sampled_ahead_is_off_from_the_policy_that_sampled_it(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one update a batch, ratios are 1 at once and not 1 a step later: the old policy is the sampler's."""
    rows = {}
    for ahead in (0, 1, 2):
        study = small_study(training={"steps": 5, "updates_per_batch": 1, "group": 12, "off_policy_steps": ahead})
        rows[ahead] = run_metrics(RunFolder(train_small(study, tmp_path / str(ahead), *made)))[:-1]
        # The first batches are all the initial model's.
        assert max(r["kl_initial"] for r in rows[ahead][: ahead + 1]) < 1e-9
        assert rows[ahead][ahead + 1]["kl_initial"] > 1e-6
        assert max(r["mismatch_max"] for r in rows[ahead]) < 1e-4
        assert rows[ahead][-1]["total_samples"] == 5 * 48
        staleness = [r.pop("staleness", None) for r in rows[ahead]]
        assert staleness == ([min(step, ahead) for step in range(5)] if ahead else [None] * 5)
        assert capsys.readouterr().err.count("all importance ratios are 1") == (ahead == 0)
    # Batches that are sampled together are those of single calls up to rounding.
    first, second = (pytest.approx(rows[2][step], rel=1e-4, abs=1e-6) for step in (0, 1))
    assert rows[0][0] == first == rows[1][0]
    assert max(r["kl_old"] for r in rows[0]) < 1e-9 < rows[1][1]["kl_old"]
    assert rows[1][1] == second != rows[0][1]


def test_the_age_of_a_batch_is_that_of_its_anchor(made: tuple[Path, Path], tmp_path: Path) -> None:
    """A-3PO is `bypass` up to an age of one step; at two its anchor is half way and kl_old a quarter."""
    rows = {}
    for name in ("a3po", "bypass"):
        training = {"steps": 3, "updates_per_batch": 1, "group": 12, "off_policy_steps": 2}
        study = small_study(training=training, experiments={"headline": {"methods": [name]}})
        rows[name] = run_metrics(RunFolder(train_small(study, tmp_path / name, *made)))[:-1]
    assert rows["a3po"][:2] == rows["bypass"][:2]
    whole, half = (rows[name][2]["kl_old"] for name in ("bypass", "a3po"))
    assert half == pytest.approx(whole / 4, rel=0.3) and whole > 1e-6


def test_waiting_batches_are_kept_by_a_checkpoint(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies while it samples. What older policies sampled and was not trained on yet is in the checkpoint."""
    study = small_study(training={"steps": 5, "group": 12, "off_policy_steps": 2, "checkpoint_every": 2})
    train_small(study, tmp_path / "whole", *made)
    generate, calls = TorchEngine.generate, []

    def dying(self: TorchEngine, requests: list[Request]) -> list[Response]:
        calls.append(len(requests))
        # In step 2: three batches were sampled together in step 0, and one in step 1.
        if len(requests) == 48 and calls.count(48) == 2:
            raise KeyboardInterrupt
        return generate(self, requests)

    monkeypatch.setattr(TorchEngine, "generate", dying)
    with pytest.raises(KeyboardInterrupt):
        train_small(study, tmp_path / "broken", *made)
    train_small(study, tmp_path / "broken", *made)
    assert (calls.count(3 * 48), calls.count(48)) == (1, 2 + 1), "no batch that waited is sampled again"
    assert_same_end(tmp_path / "broken", tmp_path / "whole")


def test_an_engine_sleeps_while_the_policy_learns_and_is_awake_when_it_samples(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In validation, with batches sampled ahead, in the heads' warm-up: GPU memory is for one of both at a time."""
    from policygrain.train import head_warm_up

    generate, load_weights, learn, awake = TorchEngine.generate, TorchEngine.load_weights, loop.update, [False]
    asked: list[int] = []

    def when_awake(self: TorchEngine, requests: list[Request]) -> list[Response]:
        assert awake[0]
        asked.append(len(requests))
        return generate(self, requests)

    def wake(self: TorchEngine, model: Any) -> None:
        awake[0] = True
        load_weights(self, model)

    def when_asleep(function: Any) -> Any:
        def checked(*arguments: Any, **named: Any) -> Any:
            assert not awake[0]
            return function(*arguments, **named)

        return checked

    monkeypatch.setattr(TorchEngine, "generate", when_awake)
    monkeypatch.setattr(TorchEngine, "load_weights", wake)
    monkeypatch.setattr(TorchEngine, "sleep", lambda self: awake.__setitem__(0, False))
    monkeypatch.setattr(loop, "update", when_asleep(learn))
    monkeypatch.setattr(head_warm_up, "score_tokens", when_asleep(head_warm_up.score_tokens))
    study = small_study(
        training={"steps": 4, "off_policy_steps": 1, "validate_every": 1},
        methods={"off_policy_steps": {"base": "mpo_heads", "mtp_heads": {"warmup_batches": 2}}},
        experiments={"headline": {"methods": ["off_policy_steps"]}},
    )
    train_small(study, tmp_path / "run", *made)
    assert len(asked) >= 2 + 4 + 5 and not awake[0]


def test_an_engine_that_is_not_the_policy_ends_the_run(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine never gets new weights; the message names step, difference and bound, and the run is saved."""
    load_weights = TorchEngine.load_weights
    study = small_study(training={"learning_rate": 3e-3, "off_policy_steps": 1})
    monkeypatch.setattr(
        TorchEngine, "load_weights", lambda self, model: load_weights(self, load_model(str(made[1]))[0])
    )
    expected = r"step \d: trainer and engine differ by 0\.\d+ nats .*more than 0\.01 \(training\.max_mismatch\)"
    with pytest.raises(UserError, match=expected):
        train_small(study, tmp_path / "run", *made)
    monkeypatch.undo()
    train_small(study, tmp_path / "run", *made)
    train_small(study, tmp_path / "whole", *made)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_the_batch_of_a_step_that_is_not_finite_is_kept(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.inf))
    with pytest.raises(UserError, match=r"gradient is not finite .*failed_batch\.pt"):
        train_small(small_study(), tmp_path / "run", *made)
    assert torch.load(tmp_path / "run" / "failed_batch.pt")["ids"].ndim == 2


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SafetensorError("I/O error: No space left on device")],
    ids=["OSError", "SafetensorError"],
)
def test_a_final_model_that_cannot_be_written_is_one_message_and_the_next_run_ends(
    failure: Exception, made: tuple[Path, Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: PreTrainedModel, folder: Path, **_: Any) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise failure

    run = tmp_path / "run"
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(UserError, match=r"run/model: the model cannot be written: .*No space left on device"):
        train_small(small_study(), run, *made)
    assert not (run / "model").exists() and not (run / "summary.json").exists() and not (run / ".model").exists()
    monkeypatch.undo()
    (run / ".model").mkdir()  # left by a process that was killed
    (run / ".model" / "model.safetensors").write_bytes(b"half")
    train_small(small_study(), run, *made)
    assert not (run / ".model").exists()
    assert_same_end(run, whole)
