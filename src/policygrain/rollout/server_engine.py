"""An engine whose responses are sampled by rollout servers (`server.py`), any number of them, which may come and go.

Requests are divided into chunks that do not depend on the servers, and a server samples one chunk at a time, so the
responses are the same whichever server has sampled which chunk, and after a chunk was repeated elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import digests
from ..errors import UserError
from ..files import atomic_text
from ..model.precision import compute_dtype
from ..model.weights import full_weights
from .engine import EngineError, Request, Response
from .server import Registration, registrations

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TIMEOUT, MISSES = 10.0, 3  # seconds for an answer; a server that misses so many in a row is gone
PAUSE = 2.0  # seconds before a server that was gone is asked again
FAILURES = 3  # of one chunk, on any servers


class NoServers(EngineError):
    """No rollout server has answered for too long."""


class ServerGone(Exception):
    """A server does not answer."""


class JobFailed(Exception):
    """A server answers that a job has failed."""


class ServerEngine:
    """Samples by the servers that are registered in ``folder``.

    Each rank of a run has one; ``writes`` is the rank that writes weights into ``folder``, for all of them. ``keep`` is
    called every second while responses are awaited, and may start servers in place of those that ended.
    """

    name = "servers"

    def __init__(
        self,
        folder: Path,
        model: str,
        attempt: str,
        *,
        chunk: int = 256,
        wait_seconds: float = 600.0,
        writes: bool = True,
        keep: Callable[[], None] = lambda: None,
        timeout: float = TIMEOUT,
    ) -> None:
        """``model``: digest of the start model; ``attempt``: the same on all ranks, another in each attempt."""
        self.folder, self.model, self.attempt, self.chunk = folder, model, attempt, chunk
        self.wait_seconds, self.writes, self.keep, self.timeout = wait_seconds, writes, keep, timeout
        self.version = ""
        self._count = 0
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy within a cluster
        self._refused: dict[str, str] = {}  # servers that are no use, and why
        self._retry_at: dict[str, float] = {}
        self._answered = time.monotonic()
        self._closed = threading.Event()

    @property
    def _weights(self) -> Path:
        return self.folder / f"weights-{self.version}.safetensors"

    def load_weights(self, model: PreTrainedModel) -> None:
        """Write the weights of ``model`` where the servers read them; each loads them before it samples next."""
        from safetensors.torch import save_file

        dtype, weights = compute_dtype(model), {}
        for name, tensor in full_weights(model):  # a collective operation, in which all ranks take part
            if self.writes:
                weights[name] = tensor.to(device="cpu", dtype=dtype, copy=True).contiguous()
        before = self._weights
        self._count += 1
        self.version = f"{self.attempt}-{self._count}"
        if self.writes:
            temporary = self._weights.with_suffix(".tmp")
            try:
                save_file(weights, temporary)
                atomic_text(self._weights.with_suffix(".sha256"), digests.of_file(temporary, full=True))
                temporary.rename(self._weights)
            except OSError as error:
                raise UserError(f"{temporary}: weights cannot be written for the servers: {error}.") from error
            for old in (before, before.with_suffix(".sha256")):
                old.unlink(missing_ok=True)

    def sleep(self) -> None:
        """Nothing to release: servers do not share the trainer's devices."""

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response per request, in order. NoServers if none answers for ``wait_seconds``."""
        work = _Work(requests, self.chunk)
        threads: dict[str, threading.Thread] = {}
        self._answered = time.monotonic()
        asked = 0.0
        while not work.finished():
            if self._closed.is_set():
                raise EngineError("the run has ended.")
            now = time.monotonic()
            if now - asked > 1:
                asked = now
                self.keep()
                for server in registrations(self.folder):
                    busy = server.id in threads and threads[server.id].is_alive()
                    if not busy and server.id not in self._refused and now > self._retry_at.get(server.id, 0):
                        threads[server.id] = threading.Thread(target=self._sample, args=(server, work), daemon=True)
                        threads[server.id].start()
            if work.error:
                raise EngineError(work.error)
            if now - self._answered > self.wait_seconds:
                known = "; ".join(f"{name}: {why}" for name, why in self._refused.items()) or "none is registered"
                raise NoServers(
                    f"{self.folder}: no rollout server has answered for {self.wait_seconds / 60:g} minutes ({known}). "
                    "Start some by `policygrain rollout-server RUN`."
                )
            work.wait(0.05)
        return work.responses()

    def _sample(self, server: Registration, work: _Work) -> None:
        """Sample chunks on one server until there are none, or until it is gone."""
        try:
            found = self._ask(server, "GET", "/health")
            if found["model"] != self.model:
                self._refuse(server, f"serves another start model (digest {found['model']})")
                return
            if found["version"] != self.version:
                digest = self._digest_of_weights()
                self._job(
                    server, {"kind": "weights", "path": str(self._weights), "digest": digest, "version": self.version}
                )
        except ServerGone:
            self._retry_at[server.id] = time.monotonic() + PAUSE
            return
        except JobFailed as error:
            self._retry_at[server.id] = time.monotonic() + PAUSE
            print(f"{server.id}: did not load the weights: {error}", file=sys.stderr)
            return
        while not self._closed.is_set() and (number := work.take()) is not None:
            try:
                job = {
                    "kind": "generate",
                    "version": self.version,
                    "requests": [asdict(r) for r in work.requests(number)],
                }
                work.done(number, [Response(**r) for r in self._job(server, job)])
            except ServerGone as gone:
                work.give_back(number)
                self._retry_at[server.id] = time.monotonic() + PAUSE
                print(f"{server.id}: does not answer ({gone}); its work goes to other servers.", file=sys.stderr)
                return
            except JobFailed as error:
                work.failed(number, f"{server.id}: {error}")
                self._retry_at[server.id] = time.monotonic() + PAUSE
                return

    def _digest_of_weights(self) -> str:
        """The digest of the newest weights, which another rank may be writing."""
        path = self._weights.with_suffix(".sha256")
        for _ in range(100):
            if self._weights.exists():
                return path.read_text()
            time.sleep(0.1)
        raise JobFailed(f"{self._weights} is not there")

    def _refuse(self, server: Registration, why: str) -> None:
        self._refused[server.id] = why
        print(f"{server.id}: {why}; it is not used.", file=sys.stderr)

    def _job(self, server: Registration, content: dict[str, Any]) -> Any:
        """The result of a job on a server. ServerGone, JobFailed."""
        number = uuid.uuid4().hex
        self._ask(server, "POST", "/jobs", {"id": number, **content})
        pause = 0.005
        while True:
            found = self._ask(server, "GET", f"/jobs/{number}")
            if found["state"] == "failed":
                raise JobFailed(found["result"])
            if found["state"] == "done":
                return found["result"]
            time.sleep(pause)
            pause = min(0.25, pause * 1.5)

    def _ask(self, server: Registration, method: str, path: str, content: Any = None) -> Any:
        """One answer of a server. ServerGone if it does not answer, JobFailed if it refuses."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(server.url + path, data, method=method)
        request.add_header("Authorization", f"Bearer {server.token}")
        for miss in range(MISSES):
            try:
                with self._opener.open(request, timeout=self.timeout) as answer:
                    found = json.loads(answer.read())
                self._answered = time.monotonic()
                return found
            except urllib.error.HTTPError as error:
                raise ServerGone(f"{error.code} {error.reason}") from error
            except (OSError, ValueError) as error:
                refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
                if refused or miss == MISSES - 1:
                    raise ServerGone(str(getattr(error, "reason", error))) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End a call of `generate` in another thread, and start no server any more."""
        self._closed.set()

    def end_servers(self) -> None:
        """Tell all registered servers to end, and forget them."""
        for server in registrations(self.folder):
            with contextlib.suppress(ServerGone):
                self._ask(server, "POST", "/end", {})
            (self.folder / f"server-{server.id}.json").unlink(missing_ok=True)


class _Work:
    """The chunks of one call: which are waiting, and the responses that have come."""

    def __init__(self, requests: Sequence[Request], chunk: int) -> None:
        self._chunks = [list(requests[i : i + chunk]) for i in range(0, len(requests), chunk)]
        self._waiting = deque(range(len(self._chunks)))
        self._responses: dict[int, list[Response]] = {}
        self._failures = [0] * len(self._chunks)
        self._changed = threading.Condition()
        self.error = ""

    def requests(self, number: int) -> list[Request]:
        """The requests of a chunk."""
        return self._chunks[number]

    def take(self) -> int | None:
        """A chunk that nobody samples; None if there is none now."""
        with self._changed:
            return self._waiting.popleft() if self._waiting and not self.error else None

    def done(self, number: int, responses: list[Response]) -> None:
        """Keep the responses of a chunk."""
        with self._changed:
            self._responses[number] = responses
            self._changed.notify_all()

    def give_back(self, number: int) -> None:
        """Let others sample a chunk."""
        with self._changed:
            self._waiting.appendleft(number)
            self._changed.notify_all()

    def failed(self, number: int, message: str) -> None:
        """A server could not sample a chunk: another tries, or the call fails."""
        self._failures[number] += 1
        if self._failures[number] >= FAILURES:
            self.error = f"sampling failed on the rollout servers {FAILURES} times; the last: {message}."
        self.give_back(number)

    def finished(self) -> bool:
        """Whether all responses are there."""
        return len(self._responses) == len(self._chunks)

    def wait(self, seconds: float) -> None:
        """Wait for a change, but no longer than this."""
        with self._changed:
            self._changed.wait(seconds)

    def responses(self) -> list[Response]:
        """All responses, in the order of the requests."""
        return [response for number in range(len(self._chunks)) for response in self._responses[number]]
