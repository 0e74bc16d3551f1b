"""The real training loop on a tiny model: every preset, exact resume, time limits, batches sampled ahead, engines."""

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

from policygrain.cli import main
from policygrain.errors import Stopped, UserError
from policygrain.model.loading import load_model
from policygrain.model.small import SmallModel
from policygrain.model.torch_engine import TorchEngine
from policygrain.objective import method_names
from policygrain.train import loop
from policygrain.train.policy import update
from policygrain.train.stopping import SIGNALS, SPARE_SECONDS, Stop, deadline

from ..support.files import read_lines
from ..support.small import SMALL, assert_same_end, small_study, study_of, train_small, trained, write_study


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in method_names() if name != "turn_ratio"])  # one turn is a sequence
def test_every_preset_trains(name, made, tmp_path):
    # GEPO's ratio is not near 1 for short responses: its range would leave no gradient in two steps.
    wide = {"clip": {"low": 1.0, "high": 100.0}} if name == "gepo" else {}
    assert [row["step"] for row in trained(study_of(name, wide, steps=2), tmp_path / "run", made)] == [0, 1, 2]
    before, after = (load_model(str(p))[0].state_dict() for p in (made[1], tmp_path / "run" / "model"))
    assert any(not torch.equal(before[k], after[k]) for k in before), "nothing was learned"
    assert all(torch.isfinite(v).all() for v in after.values())


# The method makes random choices (Clip-Cov), the prompts of a step vary in number (dynamic sampling), each batch is
# passed over twice, and two batches wait to be trained on.
HARD: dict[str, Any] = {
    "training": {"epochs": 2, "group": 12, "off_policy_steps": 2},
    "methods": {"random": {"base": "clip_cov", "sampler": {"dynamic": True}}},
    "experiments": {"headline": {"methods": ["random"]}},
}


def command(made: tuple[Path, Path], folder: Path, **training: Any) -> list[str]:
    """`policygrain train` of the small study made hard to resume; the run's folder is to be appended."""
    changed = {"training": SMALL["training"] | HARD["training"] | training}
    config = write_study(folder / "study.yaml", SMALL | HARD | changed)
    return ["train", "--config", str(config), "--results", str(made[0].parent), "--run-dir"]


@pytest.mark.slow
def test_a_killed_run_ends_as_the_undisturbed_one(made, tmp_path):
    """Killed at any moment, by SIGKILL; the same command again gives the same metrics and the same weights."""
    train, whole, broken = command(made, tmp_path, steps=12), tmp_path / "whole", tmp_path / "broken"
    assert main([*train, str(whole)]) == 0
    killed = [sys.executable, "-m", "policygrain.cli", *train, str(broken)]
    process = subprocess.Popen(killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not (broken / "checkpoints" / "step00004").exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "summary.json").exists(), "it ended before it was killed"
    assert main([*train, str(broken)]) == 0
    assert_same_end(broken, whole)


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """The run that is hard to resume, undisturbed."""
    return train_small(small_study(**HARD), tmp_path_factory.mktemp("whole") / "run", *made)


@pytest.mark.parametrize("reason", ["SIGTERM", "the time limit"])
def test_a_run_that_is_stopped_after_each_step_ends_as_the_whole(reason, made, whole, tmp_path, monkeypatch, capsys):
    run, limit = tmp_path / "run", ["--time-limit", "0"] if reason == "the time limit" else []
    train = [*command(made, tmp_path, checkpoint_every=100), str(run), *limit]

    def signalled(*arguments: Any) -> dict[str, float]:
        if reason == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*arguments)

    monkeypatch.setattr(loop, "update", signalled)
    for step in range(4):
        assert main(train) == Stopped.exit_code == 75
        said = f"stopped by {reason} after step {step + 1} of 4, and saved. The same command resumes."
        assert said in capsys.readouterr().err
        assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == [*range(step + 1)]
    assert main(train) == 0
    assert_same_end(run, whole)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noticed_after_the_step_and_its_handler_comes_back(number):
    before = signal.signal(number, signal.SIG_DFL)
    with Stop() as stop:
        assert stop.after_step(1.0) is None
        os.kill(os.getpid(), number)
        assert stop.after_step(1.0) == signal.Signals(number).name
    assert signal.signal(number, signal.SIG_IGN) is signal.SIG_DFL  # now as under nohup
    with Stop() as stop:
        os.kill(os.getpid(), number)
        assert stop.after_step(1.0) is None
    signal.signal(number, before)


def test_no_step_is_started_that_would_not_fit():
    """Beside the spare seconds there must be time for two steps as long as the longest so far."""
    stop = Stop(time.monotonic() + SPARE_SECONDS + 15)
    assert [stop.after_step(seconds) for seconds in (1.0, 6.0, 10.0, 1.0)] == [None, None, *["the time limit"] * 2]


def test_the_deadline_is_the_one_given_or_that_of_the_job(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert deadline() is None
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 50))
    for given, seconds in ((None, 50), (2, 120)):
        assert deadline(given) - time.monotonic() == pytest.approx(seconds, abs=2)


def test_two_passes_over_a_batch_are_two_updates_with_the_same_old_log_probs(made, tmp_path):
    """The second one is further from the old policy; with old log-probabilities of its own it would not be."""
    study = small_study(training={"steps": 1, "updates_per_batch": 1, "group": 12, "epochs": 2})
    first, last = trained(study, tmp_path / "run", made)
    assert last["total_updates"] == 2 and last["total_samples"] == 4 * 12
    assert first["kl_old"] > 1e-6 and first["ratio_variance"] > 1e-9


def test_a_batch_sampled_ahead_is_off_from_the_policy_that_sampled_it(made, tmp_path):
    """With one update a batch, ratios are 1 at once and not 1 a step later: the old policy is the sampler's."""
    rows = {}
    for ahead in (0, 1, 2):
        study = small_study(training={"steps": 5, "updates_per_batch": 1, "group": 12, "off_policy_steps": ahead})
        rows[ahead] = trained(study, tmp_path / str(ahead), made)[:-1]
        # The first batches are all the initial model's.
        assert max(r["kl_initial"] for r in rows[ahead][: ahead + 1]) < 1e-9
        assert rows[ahead][ahead + 1]["kl_initial"] > 1e-6
        assert max(r.pop("mismatch_max") for r in rows[ahead]) < 1e-4  # of rounding
        assert rows[ahead][-1]["total_samples"] == 5 * 48
        staleness = [r.pop("staleness", None) for r in rows[ahead]]
        assert staleness == ([min(step, ahead) for step in range(5)] if ahead else [None] * 5)
    # What is sampled ahead is what a step of its own would have sampled.
    first, second = (pytest.approx(rows[2][step], rel=1e-4, abs=1e-6) for step in (0, 1))
    assert rows[0][0] == first == rows[1][0]
    assert max(r["kl_old"] for r in rows[0]) < 1e-9 < rows[1][1]["kl_old"]
    assert rows[1][1] == second != rows[0][1]


def test_the_age_of_a_batch_is_that_of_its_anchor(made, tmp_path):
    """A-3PO is `bypass` up to an age of one step; at two its anchor is half way and kl_old a quarter."""
    rows = {}
    for name in ("a3po", "bypass"):
        study = study_of(name, steps=3, updates_per_batch=1, group=12, off_policy_steps=2, learning_rate=3e-4)
        rows[name] = trained(study, tmp_path / name, made)[:-1]
    assert rows["a3po"][:2] == rows["bypass"][:2]
    whole, half = (rows[name][2]["kl_old"] for name in ("bypass", "a3po"))
    assert half == pytest.approx(whole / 4, rel=0.3) and whole > 1e-6


def test_an_engine_sleeps_while_the_policy_learns_and_is_awake_when_it_samples(made, tmp_path, monkeypatch):
    """In validation, with batches sampled ahead, in the heads' warm-up: GPU memory is for one of both at a time."""
    awake, calls = [False], []

    def watched(owner: Any, name: str, before: set[bool], after: bool) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            assert awake[0] in before, name
            calls.append(name)
            awake[0] = after
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    watched(TorchEngine, "generate", {True}, after=True)
    watched(TorchEngine, "load_weights", {True, False}, after=True)
    watched(TorchEngine, "sleep", {True, False}, after=False)
    watched(loop, "update", {False}, after=False)
    watched(loop, "score_tokens", {False}, after=False)
    study = study_of("mpo_heads", {"mtp_heads": {"warmup_batches": 2}}, steps=4, off_policy_steps=1, validate_every=1)
    train_small(study, tmp_path / "run", *made)
    assert calls.count("generate") >= 2 + 4 + 5 and not awake[0]


def test_an_engine_that_is_not_the_policy_ends_the_run(made, tmp_path, monkeypatch):
    """The engine never gets new weights; the message names step, difference and bound, and the run can go on."""
    load_weights, start = TorchEngine.load_weights, load_model(str(made[1]))[0]
    study = small_study(training={"learning_rate": 3e-3, "off_policy_steps": 1})
    expected = r"step \d: trainer and engine differ by 0\.\d+ nats .*more than 0\.01 \(training\.max_mismatch\)"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=expected):
        patch.setattr(TorchEngine, "load_weights", lambda self, _: load_weights(self, start))
        train_small(study, tmp_path / "run", *made)
    train_small(study, tmp_path / "whole", *made)
    assert_same_end(train_small(study, tmp_path / "run", *made), tmp_path / "whole")


def test_training_a_tiny_model_imports_nothing_that_generates(made):
    """These imports take as long as all others together, in each process of a study."""
    code = "import sys, policygrain.train.loop; from policygrain.model.loading import load_model as load\n"
    code += "load(sys.argv[1], small=True); print({'sympy', 'transformers.modeling_utils'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, made[1]], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_gradient_that_is_not_finite_ends_the_run(made, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.inf))
    with pytest.raises(UserError, match=r"run: step 0: the gradient is not finite .*a lower learning rate"):
        train_small(small_study(), tmp_path / "run", *made)


def test_a_final_model_that_cannot_be_written_is_one_message_and_the_next_run_ends(made, whole, tmp_path, monkeypatch):
    def full(self: SmallModel, folder: Path, **_: Any) -> None:
        folder.mkdir()
        raise SafetensorError("I/O error: No space left on device")

    refused = pytest.raises(UserError, match=r"the model cannot be written: .*No space")
    with monkeypatch.context() as patch, refused:
        patch.setattr(SmallModel, "save_pretrained", full)
        train_small(small_study(**HARD), tmp_path / "run", *made)
    train_small(small_study(**HARD), tmp_path / "run", *made)
    assert_same_end(tmp_path / "run", whole)
