"""With `training.ahead`, rollout servers sample the next batch while the policy is updated."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.model.snapshot import Snapshot
from policygrain.rollout.engine import Request, Response
from policygrain.rollout.server_engine import NoServers, ServerEngine
from policygrain.train import loop

from ..support.small import assert_same_end, small_study, train_small

SERVERS = {"where": "servers", "servers": 1, "wait_minutes": 1.0}
DYNAMIC = {"grpo": {"sampler": {"dynamic": True, "max_batches": 8}}}


def in_background() -> bool:
    return threading.current_thread() is not threading.main_thread()


@pytest.mark.parametrize(("ahead", "methods"), [(1, {}), (2, DYNAMIC)], ids=["1", "2 with dynamic sampling"])
def test_batches_are_sampled_during_updates_and_are_those_of_a_trainer_that_waits(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, methods: dict[str, Any]
) -> None:
    training = {"steps": 5, "ahead": ahead, "checkpoint_every": 2}
    train_small(small_study(training=training, methods=methods), tmp_path / "waits", *made)
    generate, update, updating, sampled = ServerEngine.generate, loop.update, threading.Event(), []

    def generate_during_an_update(self: ServerEngine, requests: list[Request]) -> list[Response]:
        if in_background():
            assert updating.wait(60), "no update was begun while this batch was sampled"
            sampled.append(len(requests))
        return generate(self, requests)

    def watched_update(*arguments: Any) -> dict[str, float]:
        updating.set()
        return update(*arguments)

    monkeypatch.setattr(ServerEngine, "generate", generate_during_an_update)
    monkeypatch.setattr(ServerEngine, "load_weights", _after(ServerEngine.load_weights, updating.clear))
    monkeypatch.setattr(loop, "update", watched_update)
    train_small(small_study(training=training, methods=methods, rollouts=SERVERS), tmp_path / "run", *made)
    # All but the batches that the first step needs at once, and those that would be trained on after the last.
    assert len(sampled) >= 5 - ahead
    assert_same_end(tmp_path / "run", tmp_path / "waits")


def _after(method: Any, also: Any) -> Any:
    def both(self: Any, *arguments: Any) -> None:
        method(self, *arguments)
        also()

    return both


def test_without_servers_in_the_middle_a_run_resumes_from_its_checkpoint(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"steps": 5, "ahead": 1, "checkpoint_every": 2}
    train_small(small_study(training=training), tmp_path / "waits", *made)
    generate, calls = ServerEngine.generate, []

    def gone(self: ServerEngine, requests: list[Request]) -> list[Response]:
        calls.append(in_background())
        if calls[-1] and calls.count(True) == 4:
            raise NoServers("no rollout server has answered.")
        return generate(self, requests)

    monkeypatch.setattr(ServerEngine, "generate", gone)
    study = small_study(training=training, rollouts=SERVERS)
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
