"""Rollout servers: processes that sample for a trainer, and come, go, hang and lie."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policygrain import digests
from policygrain.errors import UserError
from policygrain.model.loading import load_model
from policygrain.results.layout import RunFolder
from policygrain.rollout.engine import EngineError, Request, Response
from policygrain.rollout.fleet import Fleet
from policygrain.rollout.server import Registration, ServerSettings, registrations, write_settings
from policygrain.rollout.server_engine import NoServers, ServerEngine, _Work
from policygrain.rollout.torch_engine import TorchEngine

from ..support.small import assert_same_end, small_study, train_small

QUICK = {"where": "servers", "servers": 0, "wait_minutes": 1.0}


def serve(folder: Path) -> subprocess.Popen[bytes]:
    """A server for the run whose folder of servers is ``folder``."""
    command = [sys.executable, "-m", "policygrain.cli", "rollout-server", str(folder.parent)]
    with (folder / "by-hand.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait_for(condition: Callable[[], Any], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def served(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one server."""
    folder = tmp_path_factory.mktemp("served") / "run" / "servers"
    start = made[1]
    settings = ServerSettings(str(start), None, digests.of_model(start), "transformers", "float32", None, 120.0)
    write_settings(folder, settings)
    process = serve(folder)
    wait_for(lambda: registrations(folder))
    yield folder
    process.terminate()
    process.wait()


def engine_for(folder: Path, start: Path, **changes: Any) -> ServerEngine:
    return ServerEngine(folder, digests.of_model(start), "attempt", chunk=3, wait_seconds=20, **changes)


def requests_for(tokenizer: Any, count: int = 10) -> list[Request]:
    return [Request(tokenizer(f"{i}+1=").input_ids, seed=i, max_tokens=8) for i in range(count)]


def test_a_server_samples_what_the_engine_in_the_process_does(served: Path, made: tuple[Path, Path]) -> None:
    import torch

    model, tokenizer = load_model(str(made[1]))
    engine, requests = engine_for(served, made[1]), requests_for(tokenizer)
    for _ in range(2):
        engine.load_weights(model)
        here = TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
        expected = [r for i in range(0, 10, 3) for r in here.generate(requests[i : i + 3])]
        assert engine.generate(requests) == expected
        with torch.no_grad():  # as by an update
            for parameter in model.parameters():
                parameter.mul_(1.5)
    assert len(list(served.glob("weights-*.safetensors"))) == 1, "older weights are removed"


def test_without_its_token_a_server_does_nothing(served: Path) -> None:
    (server,) = registrations(served)
    assert (served / f"server-{server.id}.json").stat().st_mode & 0o077 == 0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(server.url + "/health", timeout=5)


def test_weights_that_did_not_arrive_whole_are_not_used(
    served: Path, made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = load_model(str(made[1]))
    engine = engine_for(served, made[1])
    engine.wait_seconds = 3
    engine.load_weights(model)
    path = engine._weights
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    threading.Timer(3.0, lambda: path.write_bytes(whole)).start()
    engine.wait_seconds = 30
    assert len(engine.generate(requests_for(tokenizer))) == 10
    assert "the weights did not arrive whole" in capsys.readouterr().err


def test_a_server_of_another_model_is_not_used(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ServerEngine(served, "another", "attempt", wait_seconds=2)
    with pytest.raises(NoServers, match="serves another start model"):
        engine.generate([Request([1], 0, 2)])
    assert "it is not used" in capsys.readouterr().err


def test_what_fails_on_every_server_is_an_error_with_its_reason(served: Path, made: tuple[Path, Path]) -> None:
    model, _ = load_model(str(made[1]))
    engine = engine_for(served, made[1])
    engine.load_weights(model)
    with pytest.raises(EngineError, match="sampling failed on the rollout servers 3 times; the last"):
        engine.generate([Request([10**9], 0, 4)])


def test_a_server_that_hangs_is_left(made: tuple[Path, Path], tmp_path: Path) -> None:
    import socket

    silent = socket.create_server(("127.0.0.1", 0))  # connects, and never answers
    registered = Registration("silent", f"http://127.0.0.1:{silent.getsockname()[1]}", "token", "model")
    (tmp_path / "server-silent.json").write_text(json.dumps(registered._asdict()))
    engine = ServerEngine(tmp_path, "model", "attempt", wait_seconds=2.0, timeout=0.2)
    begin = time.monotonic()
    with pytest.raises(NoServers, match=r"no rollout server has answered.*policygrain rollout-server RUN"):
        engine.generate([Request([1], 0, 2)])
    assert time.monotonic() - begin < 10


def test_an_engine_that_is_closed_ends_what_it_waits_for_and_starts_no_server(tmp_path: Path) -> None:
    fleet, failed = Fleet(tmp_path, 1), []
    engine = ServerEngine(tmp_path, "model", "attempt", wait_seconds=600)

    def sample() -> None:
        try:
            engine.generate([Request([1], 0, 2)])
        except EngineError as error:
            failed.append(str(error))

    thread = threading.Thread(target=sample)
    thread.start()
    engine.close()
    fleet.end()
    thread.join(10)
    assert failed == ["the run has ended."]
    fleet.keep()
    assert fleet._processes == [None]


def test_responses_come_in_the_order_of_the_requests_whoever_samples_them() -> None:
    requests = [Request([i], i, 1) for i in range(7)]
    work = _Work(requests, 2)
    taken = [work.take() for _ in range(4)]
    assert taken == [0, 1, 2, 3] and work.take() is None
    work.give_back(1)
    assert work.take() == 1
    for number in (3, 1, 0, 2):
        work.done(number, [Response([r.seed], True, [0.0]) for r in work.requests(number)])
    work.done(3, [Response([6], True, [0.0])])  # by a server that was thought gone: the same again
    assert work.finished() and [r.ids[0] for r in work.responses()] == list(range(7))


@pytest.fixture(scope="module")
def colocated(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small(small_study(), tmp_path_factory.mktemp("colocated") / "run", *made)


def test_a_run_with_servers_that_are_killed_by_turns_ends_as_one_without(
    made: tuple[Path, Path], colocated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers beside the trainer, killed in turn as soon as both are there; each is started again."""
    run, over, killed, generate, calls = tmp_path / "run", threading.Event(), [], ServerEngine.generate, []

    def generate_by_two(self: ServerEngine, requests: list[Request]) -> list[Response]:
        """The run would end before the second server has started: the first call waits for it."""
        calls.append(len(requests))
        wait_for(lambda: killed or (len(calls) == 1 and len(registrations(self.folder)) == 2))
        return generate(self, requests)

    monkeypatch.setattr(ServerEngine, "generate", generate_by_two)

    def kill() -> None:
        while not over.wait(0.05):
            there = registrations(run / "servers")
            fresh = [server for server in there if server.id not in killed]
            if len(fresh) == 2:
                os.kill(int(fresh[len(killed) % 2].id.rpartition("-")[2]), signal.SIGKILL)
                killed.append(fresh[len(killed) % 2].id)
                (run / "servers" / f"server-{killed[-1]}.json").unlink(missing_ok=True)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        train_small(small_study(rollouts={**QUICK, "servers": 2, "chunk": 16}), run, *made)
    finally:
        over.set()
        killer.join()
    assert killed
    assert_same_end(run, colocated)
    assert not registrations(run / "servers") and not list((run / "servers").glob("weights-*"))


def test_a_run_waits_for_a_server_that_is_started_by_hand(
    made: tuple[Path, Path], colocated: Path, tmp_path: Path
) -> None:
    run, processes = tmp_path / "run", []

    def join() -> None:
        wait_for((run / "servers" / "serve.json").exists)
        processes.append(serve(run / "servers"))

    helper = threading.Thread(target=join)
    helper.start()
    train_small(small_study(rollouts={**QUICK, "chunk": 16}), run, *made)
    helper.join()
    assert_same_end(run, colocated)
    assert processes[0].wait(20) == 0, "the run ends its servers"


def test_servers_that_a_killed_attempt_left_are_ended(made: tuple[Path, Path], colocated: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start = made[1]
    settings = ServerSettings(str(start), None, digests.of_model(start), "transformers", "float32", None, 120.0)
    write_settings(run / "servers", settings)
    left = serve(run / "servers")
    wait_for(lambda: registrations(run / "servers"))
    train_small(small_study(rollouts={**QUICK, "servers": 1, "chunk": 16}), run, *made)
    assert left.wait(20) == 0
    assert_same_end(run, colocated)


def test_a_run_without_servers_is_saved_and_resumes(made: tuple[Path, Path], colocated: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(UserError, match=r"no rollout server has answered for 0\.02 minutes.*The run is saved"):
        train_small(small_study(rollouts={**QUICK, "wait_minutes": 0.02}), run, *made)
    train_small(small_study(), run, *made)
    assert_same_end(run, colocated)


def test_a_server_without_a_run_says_so(tmp_path: Path) -> None:
    from policygrain.cli import main

    assert main(["rollout-server", str(tmp_path)]) == 2
    assert not RunFolder(tmp_path).servers.exists()
