"""With `training.ahead`, rollout servers sample the next batch while the policy is updated."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.model.loading import load_model
from policygrain.model.snapshot import Snapshot
from policygrain.rollout.engine import Request, Response
from policygrain.rollout.server_engine import NoServers, ServerEngine
from policygrain.rollout.torch_engine import TorchEngine
from policygrain.train import loop, pending_batch

from ..support.small import assert_same_end, small_study, train_small

TRAINING = {"steps": 5, "ahead": 1, "checkpoint_every": 2}
SERVERS = {"where": "servers", "servers": 0, "wait_minutes": 1.0}
DYNAMIC = {"grpo": {"sampler": {"dynamic": True, "max_batches": 8}}}


def in_background() -> bool:
    return threading.current_thread() is not threading.main_thread()


@pytest.fixture
def sampled_here(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to servers are answered in this process, with a copy of the weights that were sent."""
    own, tokenizer = load_model(str(made[1]))
    engine = TorchEngine(own, tokenizer.eos_token_id, tokenizer.pad_token_id)

    def load_weights(self: ServerEngine, model: Any) -> None:
        own.load_state_dict(model.state_dict())

    def generate(self: ServerEngine, requests: list[Request]) -> list[Response]:
        torch.set_num_threads(1)  # as in training: each thread has its own number
        return engine.generate(requests)

    monkeypatch.setattr(ServerEngine, "load_weights", load_weights)
    monkeypatch.setattr(ServerEngine, "generate", generate)


@pytest.mark.parametrize(
    ("ahead", "methods", "servers"),
    [(1, {}, 1), (2, DYNAMIC, 0)],
    ids=["with a server", "two batches ahead, dynamic sampling"],
)
def test_batches_are_sampled_during_updates_and_are_those_of_a_trainer_that_waits(
    made: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    ahead: int,
    methods: dict[str, Any],
    servers: int,
) -> None:
    training = {**TRAINING, "ahead": ahead}
    train_small(small_study(training=training, methods=methods), tmp_path / "waits", *made)
    if not servers:
        request.getfixturevalue("sampled_here")
        monkeypatch.setattr(pending_batch, "WAIT", 0.001)
    generate, load_weights, update = ServerEngine.generate, ServerEngine.load_weights, loop.update
    updating, sampled = threading.Event(), []

    def generate_during_an_update(self: ServerEngine, requests: list[Request]) -> list[Response]:
        if in_background():
            assert updating.wait(60), "no update was begun while this batch was sampled"
            sampled.append(len(requests))
        return generate(self, requests)

    def begin(self: ServerEngine, model: Any) -> None:
        load_weights(self, model)
        updating.clear()

    def watched_update(*arguments: Any) -> dict[str, float]:
        updating.set()
        return update(*arguments)

    monkeypatch.setattr(ServerEngine, "generate", generate_during_an_update)
    monkeypatch.setattr(ServerEngine, "load_weights", begin)
    monkeypatch.setattr(loop, "update", watched_update)
    rollouts = {**SERVERS, "servers": servers}
    train_small(small_study(training=training, methods=methods, rollouts=rollouts), tmp_path / "run", *made)
    # The first step waits for `ahead` batches, which it and the next steps train on; the others are sampled beside.
    assert len(sampled) >= 5 - ahead
    assert_same_end(tmp_path / "run", tmp_path / "waits")


@pytest.mark.usefixtures("sampled_here")
def test_without_servers_in_the_middle_a_run_resumes_from_its_checkpoint(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_small(small_study(training=TRAINING), tmp_path / "waits", *made)
    generate, calls = ServerEngine.generate, []

    def gone(self: ServerEngine, requests: list[Request]) -> list[Response]:
        calls.append(in_background())
        if calls[-1] and calls.count(True) == 4:
            raise NoServers("no rollout server has answered.")
        return generate(self, requests)

    monkeypatch.setattr(ServerEngine, "generate", gone)
    study = small_study(training=TRAINING, rollouts=SERVERS)
    with pytest.raises(UserError, match=r"no rollout server has answered\. The run resumes from its last checkpoint"):
        train_small(study, tmp_path / "run", *made)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step*"))[-1] == "step00002"
    train_small(study, tmp_path / "run", *made)
    assert_same_end(tmp_path / "run", tmp_path / "waits")


def test_a_snapshot_is_loaded_for_a_while() -> None:
    module = torch.nn.Linear(2, 1)
    module.bias.requires_grad_(False)

    def values() -> list[list[float]]:
        return [p.flatten().tolist() for p in module.parameters()]

    first = values()
    snapshot = Snapshot([module])
    with torch.no_grad():
        module.weight.mul_(2)
        module.bias.add_(1)
    second = values()
    assert second != first
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), snapshot.loaded():
            assert values() == [first[0], second[1]], "weights that are not trained are not part of it"
            raise ZeroDivisionError
        assert values() == second
