"""The real trainer on a tiny model: every preset, invariance of a step, exact resume, what is in the way."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from policygrain.cli import main
from policygrain.errors import Stopped, UserError
from policygrain.files import read_json_lines
from policygrain.methods import method, method_names
from policygrain.model.loading import load_model
from policygrain.model.sequences import Sequences
from policygrain.objective.batch import TokenBatch
from policygrain.rollout.engine import Request, Response
from policygrain.rollout.torch_engine import TorchEngine
from policygrain.stages import train_run
from policygrain.train import checkpoint
from policygrain.train.mtp_heads import build_heads
from policygrain.train.policy import Policy, make_scaler
from policygrain.train.stopping import Stop
from policygrain.train.update import TrainingBatch, update
from policygrain.views.tokens import write_page

from ..support.small import SMALL, make_start, small_study, train_small


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_start(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("name", method_names())
def test_every_preset_trains(name: str, made: tuple[Path, Path], tmp_path: Path) -> None:
    study = small_study(training={"steps": 2}, experiments={"headline": {"methods": [name]}})
    rows = read_json_lines(train_small(study, tmp_path / "run", *made) / "metrics.jsonl")
    assert [r["step"] for r in rows] == [0, 1, 2]
    before, after = (load_model(str(p))[0].state_dict() for p in (made[1], tmp_path / "run" / "model"))
    assert any(not torch.equal(before[k], after[k]) for k in before), "nothing was learned"
    assert all(torch.isfinite(v).all() for v in after.values())


def test_same_seed_same_metrics_file(made: tuple[Path, Path], tmp_path: Path) -> None:
    files = [train_small(small_study(), tmp_path / name, *made) / "metrics.jsonl" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_killed_run_ends_as_the_undisturbed_one(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed at any moment, by SIGKILL; the same command again gives the same metrics and the same weights.

    The method draws lots (Clip-Cov) and is at another place of the prompts after each step (dynamic sampling).
    """
    config = tmp_path / "study.yaml"
    content = copy.deepcopy(SMALL)
    content["training"]["steps"] = 12
    content["methods"] = {"lots": {"base": "clip_cov", "sampler": {"dynamic": True}}}
    content["experiments"] = {"headline": {"methods": ["lots"]}}
    config.write_text(yaml.safe_dump(content))
    data, start = made
    command = [sys.executable, "-m", "policygrain.cli", "train", "--config", str(config)]
    command += ["--start", str(start), "--data", str(data), "--run-dir"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)

    broken = tmp_path / "broken"
    process = subprocess.Popen([*command, str(broken)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (broken / "checkpoints" / "step00004").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "summary.json").exists(), "it ended before it was killed"
    subprocess.run([*command, str(broken)], check=True, capture_output=True)

    assert (broken / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    digests = [json.loads((tmp_path / d / "summary.json").read_text())["model_digest"] for d in ("whole", "broken")]
    assert digests[0] == digests[1]


def test_a_batch_drawn_ahead_is_off_from_the_policy_that_sampled_it(made: tuple[Path, Path], tmp_path: Path) -> None:
    """With one update a batch, ratios are 1 at once and not 1 a step later: the old policy is the sampler's."""
    rows = {}
    for ahead in (0, 1, 2):
        study = small_study(training={"steps": 5, "updates_per_batch": 1, "group": 12, "ahead": ahead})
        rows[ahead] = read_json_lines(train_small(study, tmp_path / str(ahead), *made) / "metrics.jsonl")[:-1]
        # The first batches are all the start model's.
        assert max(r["kl_initial"] for r in rows[ahead][: ahead + 1]) < 1e-9
        assert rows[ahead][ahead + 1]["kl_initial"] > 1e-6
        assert max(r["mismatch_max"] for r in rows[ahead]) < 1e-4
        assert rows[ahead][-1]["total_samples"] == 5 * 48
    assert rows[0][0] == rows[1][0] == rows[2][0]
    assert max(r["kl_old"] for r in rows[0]) < 1e-9 < rows[1][1]["kl_old"]
    assert rows[1][1] == rows[2][1] != rows[0][1]


def test_batches_that_wait_outlive_the_run_that_drew_them(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies while it draws. What older policies had drawn and was not trained on yet is in the checkpoint."""
    study = small_study(training={"steps": 5, "group": 12, "ahead": 2, "checkpoint_every": 2})
    train_small(study, tmp_path / "whole", *made)
    generate, calls = TorchEngine.generate, []

    def dying(self: TorchEngine, requests: list[Request]) -> list[Response]:
        calls.append(len(requests))
        if len(requests) == 48 and calls.count(48) == 5:  # of step 2: three batches were drawn in step 0, one in step 1
            raise KeyboardInterrupt
        return generate(self, requests)

    monkeypatch.setattr(TorchEngine, "generate", dying)
    with pytest.raises(KeyboardInterrupt):
        train_small(study, tmp_path / "broken", *made)
    train_small(study, tmp_path / "broken", *made)
    assert calls.count(48) == 5 + 1, "nothing that waited is drawn again"
    assert (tmp_path / "broken" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    digests = [json.loads((tmp_path / d / "summary.json").read_text())["model_digest"] for d in ("whole", "broken")]
    assert digests[0] == digests[1]


def test_an_engine_sleeps_while_the_policy_learns_and_is_awake_when_asked(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In validation, with batches drawn ahead, before heads learn: on a GPU the memory serves one at a time."""
    from policygrain.model import sharding
    from policygrain.train import heads, loop

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
    monkeypatch.setattr(heads, "read", when_asleep(sharding.read))
    study = small_study(
        training={"steps": 4, "ahead": 1, "validate_every": 1},
        methods={"ahead": {"base": "mpo_heads", "mtp_heads": {"warmup_batches": 2}}},
        experiments={"headline": {"methods": ["ahead"]}},
    )
    train_small(study, tmp_path / "run", *made)
    assert len(asked) >= 2 + 4 + 5 and not awake[0]


def test_an_engine_that_is_not_the_policy_ends_the_run(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It samples from the start model for ever; the message names step, figure and bound, and the run is saved."""
    load_weights = TorchEngine.load_weights
    study = small_study(training={"learning_rate": 3e-3, "ahead": 1})
    monkeypatch.setattr(
        TorchEngine, "load_weights", lambda self, model: load_weights(self, load_model(str(made[1]))[0])
    )
    with pytest.raises(UserError, match=r"step \d: .* disagree by 0\.\d+ nats .*0\.01 \(training.max_mismatch\)"):
        train_small(study, tmp_path / "run", *made)
    monkeypatch.undo()
    train_small(study, tmp_path / "run", *made)
    train_small(study, tmp_path / "whole", *made)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_rollouts_by_vllm_follow_the_weights(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Each step samples from the weights of that step, and a second run takes the engine over: trainer and engine agree
    on what was sampled.
    """
    config = tmp_path / "study.yaml"
    content = copy.deepcopy(SMALL)
    content["training"] |= {"engine": "vllm", "steps": 3, "learning_rate": 3e-3}
    config.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "policygrain.cli", "train", "--config", str(config), "--data", str(made[0])]
    command += ["--start-model", str(made[1]), "--seeds", "0", "1", "--run-dir", str(tmp_path / "run{seed}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for seed in (0, 1):
        rows = read_json_lines(tmp_path / f"run{seed}" / "metrics.jsonl")[:-1]
        assert len(rows) == 3 and max(r["kl_initial"] for r in rows) > 1e-4, "the weights must have moved"
        assert max(r["mismatch_max"] for r in rows) < 1e-4


def two_checkpoints(folder: Path) -> torch.nn.Linear:
    part = torch.nn.Linear(8, 4)
    for step in (1, 2, 3):
        torch.nn.init.constant_(part.weight, step)
        checkpoint.save(folder, step, {"model": part}, {"step": step})
    return part


def test_the_newest_checkpoints_are_kept_and_those_that_were_asked_for(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    folder = tmp_path / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["step00002", "step00003"]
    (folder / ".step00004").mkdir()  # what a killed process leaves
    for step in range(4, 10):
        checkpoint.save(tmp_path, step, {}, {"step": step}, keep_every=3)
    assert sorted(p.name for p in folder.iterdir()) == ["step00003", "step00006", "step00008", "step00009"]


def test_a_torn_checkpoint_is_passed_over_aloud(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Cut or changed at any byte of any of its files, or without one of them."""
    two_checkpoints(tmp_path)
    newest = tmp_path / "checkpoints" / "step00003"
    for name in ("state.pt", "sha256"):
        content = (newest / name).read_bytes()
        places = sorted({*range(0, len(content), max(1, len(content) // 40)), len(content) - 1})
        changed = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in places]
        for torn in (*(content[:i] for i in places), *changed, None):
            (newest / name).unlink() if torn is None else (newest / name).write_bytes(torn)
            part = torch.nn.Linear(8, 4)
            counters = checkpoint.load_newest(tmp_path, {"model": part})
            assert counters == {"step": 2} and part.weight.eq(2).all()
            assert "step00003: passed over" in "".join(capfd.readouterr())
        (newest / name).write_bytes(content)
    assert checkpoint.load_newest(tmp_path, {"model": torch.nn.Linear(8, 4)}) == {"step": 3}
    shutil.rmtree(tmp_path / "checkpoints" / "step00002")
    (newest / "state.pt").unlink()
    assert checkpoint.load_newest(tmp_path, {}) is None


def test_a_ratio_beyond_the_bound_ends_the_run_and_its_batch_is_kept(made: tuple[Path, Path], tmp_path: Path) -> None:
    study = small_study(training={"learning_rate": 0.1, "updates_per_batch": 4, "max_ratio": 1.5})
    with pytest.raises(UserError, match=r"larger than training\.max_ratio, 1\.5 .*failed_batch\.pt"):
        train_small(study, tmp_path / "run", *made)
    assert torch.load(tmp_path / "run" / "failed_batch.pt")["ids"].ndim == 2


def test_two_trainers_do_not_share_a_run_directory(made: tuple[Path, Path], tmp_path: Path) -> None:
    with (
        checkpoint.run_lock(tmp_path / "run"),
        pytest.raises(UserError, match=f"another process is training here .process {os.getpid()} on "),
        checkpoint.run_lock(tmp_path / "run"),
    ):
        pass
    # Nor does one with other settings take what a living one writes to.
    run = train_small(small_study(), tmp_path / "trained", *made)
    other = small_study(training={"learning_rate": 5e-4})
    with checkpoint.run_lock(run), pytest.raises(UserError, match="another process is training here"):
        train_small(other, run, *made)
    assert (run / "metrics.jsonl").exists() and not list(run.glob("superseded-*"))
    with checkpoint.run_lock(tmp_path / "run"):  # the holder is gone
        pass


def test_a_finished_run_is_left_and_another_s_is_set_aside(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_small(small_study(), tmp_path / "run", *made)
    first = (run / "metrics.jsonl").read_bytes()
    stamp = (run / "metrics.jsonl").stat().st_mtime_ns
    train_small(small_study(), run, *made)
    assert (run / "metrics.jsonl").stat().st_mtime_ns == stamp
    train_small(small_study(training={"learning_rate": 1e-4}), run, *made)
    assert "moved to" in capsys.readouterr().out
    (aside,) = run.glob("superseded-*")
    assert (aside / "metrics.jsonl").read_bytes() == first != (run / "metrics.jsonl").read_bytes()


def test_how_a_run_is_held_and_saved_may_change_in_its_middle(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Out of memory, say: with smaller micro-batches it goes on where it was."""
    whole = read_json_lines(train_small(small_study(), tmp_path / "whole", *made) / "metrics.jsonl")
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train_run(small_study(), None, 0, run, str(made[1]), made[0], Stop(deadline=0.0))
    held = {"micro_batch_tokens": 60, "kv_gib": 0.5, "checkpoint_every": 3, "keep_every": 3, "max_ratio": 1e9}
    study = small_study(training={**held, "max_mismatch": 0.1, "activation_checkpointing": True})
    rows = read_json_lines(train_small(study, run, *made) / "metrics.jsonl")
    assert not list(run.glob("superseded-*"))
    assert rows[0] == whole[0] and rows[-1]["total_tokens"] == whole[-1]["total_tokens"]
    for row, expected in zip(rows[:-1], whole[:-1], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3, abs=1e-5)


def test_a_model_folder_that_cannot_be_read_is_one_message(made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="broken' cannot be loaded"):
        train_small(small_study(), tmp_path / "run", made[0], tmp_path / "broken")
    shutil.copytree(made[1], tmp_path / "torn")
    weights = tmp_path / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="torn' cannot be loaded"):
        train_small(small_study(), tmp_path / "run", made[0], tmp_path / "torn")


def test_a_step_can_be_looked_at_token_by_token(made: tuple[Path, Path], tmp_path: Path) -> None:
    run = train_small(small_study(), tmp_path / "tepo" / "seed0", *made, arm="tepo")
    assert main(["inspect", str(run), "--step", "2"]) == 0
    page = (run / "tokens" / "step00002.html").read_text()
    data = json.loads((run / "tokens" / "step00002.json").read_text())
    assert page.count("<article") == len(data["samples"]) == 8 and "{{" not in page
    assert page.count("<i class") == sum(len(sample["tokens"]) for sample in data["samples"]) + 3  # and the legend
    for sample in data["samples"]:
        # The sequence ratio is the geometric mean of its tokens' and the same for all of them.
        mean = sum(new - old for new, old in zip(sample["log_prob"], sample["log_prob_old"], strict=True))
        expected = math.exp(mean / len(sample["tokens"]))
        assert sample["ratio"] == pytest.approx([expected] * len(sample["tokens"]), abs=1e-4)
        assert not any(sample["entropy_drop"]) or sample["advantage"] > 0
    assert any(abs(r - 1) > 1e-4 for sample in data["samples"] for r in sample["ratio"])
    with pytest.raises(UserError, match=r"step 1 were not kept\. There are: 0, 2, 3"):
        write_page(run, 1, None)
    with pytest.raises(UserError, match="no tokens were kept here"):
        write_page(tmp_path, None, None)


# ---- one optimizer step, cut, padded and ordered in every way -------------------------------------------------------


def random_batch(rows: int = 10, prompt: int = 9, width: int = 14, pad: tuple[int, int] = (0, 0)) -> TrainingBatch:
    """A batch of made-up responses to half as many prompts; ``pad`` adds columns before prompts and after responses."""
    generator = torch.Generator().manual_seed(3)
    left, right = pad
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    prompt_lengths = torch.randint(1, prompt + 1, (rows // 2,), generator=generator)
    prompts = torch.randint(3, 40, (rows // 2, prompt), generator=generator)
    ids = torch.randint(3, 40, (rows, width), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    loss_mask = mask.clone()
    loss_mask[2] = False  # a truncated response that is left out of the loss
    noise = torch.randn((4, rows, width), generator=generator)
    tokens = {
        "log_probs": noise[0] * 0.1 - 3,
        "old_log_probs": noise[0] * 0.1 - 3,
        "entropy": noise[1].abs(),
        "old_entropy": 2 + noise[1].abs(),
        "ref_log_probs": noise[2] * 0.1 - 3,
        "rollout_weights": noise[3].abs(),
        "old_future_log_probs": noise[0] * 0.1 - 12,
    }

    def padded(x: torch.Tensor, left: int, right: int) -> torch.Tensor:
        return torch.nn.functional.pad(x, (left, right))

    return TrainingBatch(
        Sequences(
            prompts=padded(prompts, left, 0),
            prompt_mask=padded(torch.arange(prompt) >= prompt - prompt_lengths[:, None], left, 0),
            prompt_of=torch.arange(rows) // 2,
            ids=padded(ids, 0, right),
            mask=padded(mask, 0, right),
        ),
        TokenBatch(
            advantages=torch.randn(rows, generator=generator),
            mask=padded(loss_mask, 0, right),
            max_length=20,
            **{k: torch.nn.functional.pad(v, (0, right), value=7.0) for k, v in tokens.items()},
        ),
    )


def gradient_of(start: Path, name: str, batch: TrainingBatch, budget: int) -> tuple[torch.Tensor, dict[str, float]]:
    """The real `update` with a plain SGD of rate 1: the change of weights is the gradient."""
    model, _ = load_model(str(start), dtype="float64")
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    settings = small_study().training.model_copy(update={"micro_batch_tokens": budget, "max_grad_norm": 1e9})
    changes = {"clip": {"fraction": 0.0}} if name == "clip_cov" else {}
    chosen = method(name, **changes)
    heads = build_heads(model, chosen, seed=0)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    metrics = update(Policy(model, None, None, heads, sgd, make_scaler(settings)), batch, chosen, settings)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return before - after, metrics


@pytest.mark.parametrize("name", method_names())
def test_a_step_does_not_depend_on_how_it_is_cut_padded_or_ordered(name: str, made: tuple[Path, Path]) -> None:
    whole, metrics = gradient_of(made[1], name, random_batch(), budget=10**6)
    assert whole.norm() > 1e-6
    order = torch.tensor([7, 2, 9, 0, 5, 1, 8, 3, 6, 4])
    variants = {
        "a row at a time": (random_batch(), 1),
        "some micro-batches": (random_batch(), 60),
        "padded": (random_batch(pad=(5, 8)), 10**6),
        "padded and cut": (random_batch(pad=(3, 2)), 60),
        "shuffled": (random_batch().rows(order), 60),
    }
    for what, (batch, budget) in variants.items():
        # float32 log-softmax inside a float64 model bounds the agreement.
        gradient, same = gradient_of(made[1], name, batch, budget)
        assert torch.allclose(gradient, whole, rtol=1e-4, atol=1e-6 * whole.norm().item()), what
        for key, value in metrics.items():
            assert same[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (what, key)
