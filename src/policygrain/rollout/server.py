"""A rollout server: an engine in a process of its own, which samples for a trainer that may be on another machine.

It answers HTTP requests with its token: `GET /health`, `POST /jobs` (load weights, or sample), `GET /jobs/ID`. Every
answer is immediate, so a client soon notices a server that is gone; jobs run one after the other.
"""

from __future__ import annotations

import json
import math
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import digests
from ..errors import UserError
from ..files import atomic_json, read_json
from .engine import Request, ServedEngine

if TYPE_CHECKING:
    from torch import Tensor

KEPT_SECONDS = 60.0  # a result that its client has not asked for is dropped after this time
SETTINGS = "serve.json"  # in the folder of servers: what each of them has to serve


class ServerSettings(NamedTuple):
    """What a trainer asks of its servers."""

    start: str  # folder or hub name of the model that training starts from
    revision: str | None
    model: str  # digest of the start model
    engine: str  # vllm or transformers
    dtype: str
    kv_gib: float | None
    idle_seconds: float  # without any request a server ends


class Registration(NamedTuple):
    """How a trainer reaches a server: the file that each server writes into the folder of servers."""

    id: str
    url: str
    token: str
    model: str  # digest of the start model


def read_settings(folder: Path) -> ServerSettings:
    """The settings that a trainer has written. UserError if there are none."""
    path = folder / SETTINGS
    if not path.exists():
        raise UserError(f"{path}: not there. Start the training run first, with rollouts.where: servers.")
    return ServerSettings(**read_json(path))


def write_settings(folder: Path, settings: ServerSettings) -> None:
    """Write what servers have to serve."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_json(folder / SETTINGS, settings._asdict())


def registrations(folder: Path) -> list[Registration]:
    """The servers that are registered; some of them may be gone."""
    found = []
    for path in sorted(folder.glob("server-*.json")):
        try:
            found.append(Registration(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError):  # just removed, or not written by a server
            continue
    return found


@dataclass
class Job:
    """A job of a client and what became of it."""

    content: dict[str, Any]
    state: str = "waiting"  # waiting, done, failed
    result: Any = None
    ended: float = math.inf


@dataclass
class Server:
    """An engine, the version of its weights, and the jobs of its client."""

    engine: ServedEngine
    model: str
    token: str = field(default_factory=secrets.token_hex)
    version: str = ""
    jobs: dict[str, Job] = field(default_factory=dict)
    waiting: queue.Queue[Job] = field(default_factory=queue.Queue)
    contacted: float = field(default_factory=time.monotonic)
    ending: bool = False

    def work(self, idle_seconds: float) -> None:
        """Run jobs until the server is told to end, or nobody has asked anything for a time."""
        while not self.ending and time.monotonic() - self.contacted < idle_seconds:
            try:
                job = self.waiting.get(timeout=0.2)
            except queue.Empty:
                continue
            try:
                job.result, state = self._run(job.content), "done"
            except Exception as error:  # the client is told, and decides
                job.result, state = f"{type(error).__name__}: {error}", "failed"
            job.state = state
            job.ended = self.contacted = time.monotonic()

    def add(self, content: dict[str, Any]) -> None:
        """Add a job. One with a known id is the same job, whose answer was lost."""
        now = time.monotonic()
        for number in [n for n, job in self.jobs.items() if now - job.ended > KEPT_SECONDS]:
            del self.jobs[number]
        if content["id"] not in self.jobs:
            self.jobs[content["id"]] = Job(content)
            self.waiting.put(self.jobs[content["id"]])

    def _run(self, job: Mapping[str, Any]) -> Any:
        if job["kind"] == "weights":
            load_weights(self.engine, Path(job["path"]), job["digest"])
            self.version = job["version"]
            return self.version
        if job["version"] != self.version:
            raise ValueError(f"the server has the weights {self.version!r}, not {job['version']!r}")
        return [asdict(response) for response in self.engine.generate([Request(**r) for r in job["requests"]])]


def load_weights(engine: ServedEngine, path: Path, digest: str) -> None:
    """Load the weights in a safetensors file into ``engine``. ValueError if the file is not the one with ``digest``."""
    from safetensors.torch import load_file

    if (found := digests.of_file(path, full=True)) != digest:
        raise ValueError(f"{path}: has the digest {found[:16]}, not {digest[:16]}: the weights did not arrive whole")
    weights: dict[str, Tensor] = load_file(path)
    engine.load_tensors(weights)


def open_served_engine(settings: ServerSettings) -> ServedEngine:
    """The engine that a server runs. UserError if the model is not the one that the trainer started from."""
    if (found := digests.of_model(Path(settings.start))) != settings.model:
        raise UserError(f"{settings.start}: is not the model that the run starts from (digest {found}).")
    if settings.engine == "vllm":
        from .open import check_vllm_runs_here

        check_vllm_runs_here()
        from .vllm_engine import VllmEngine

        return VllmEngine(settings.start, settings.revision, settings.dtype, settings.kv_gib)
    from ..model.loading import load_model
    from .torch_engine import TorchEngine

    model, tokenizer = load_model(settings.start, settings.revision, settings.dtype)
    return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)


def serve(folder: Path) -> None:
    """Serve the run whose folder of servers this is, until it ends."""
    settings = read_settings(folder)
    server = Server(open_served_engine(settings), settings.model)
    listener = ThreadingHTTPServer(("", 0), _handler(server))
    listener.daemon_threads = True
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    name = f"{socket.gethostname()}-{os.getpid()}"
    path = folder / f"server-{name}.json"
    own = Registration(name, f"http://{_address()}:{listener.server_address[1]}", server.token, settings.model)
    with _private():
        atomic_json(path, own._asdict())
    print(f"{name}: serves {settings.start} by {settings.engine} at {own.url}", file=sys.stderr)
    try:
        server.work(settings.idle_seconds)
    finally:
        path.unlink(missing_ok=True)
        listener.shutdown()


class _private:
    """Context in which new files can be read by their owner only: the token is in one."""

    def __enter__(self) -> None:
        self.mask = os.umask(0o077)

    def __exit__(self, *_: object) -> None:
        os.umask(self.mask)


def _address() -> str:
    """The address of this machine by which others reach it: of its name, or of the loopback interface."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self._allowed():
                return
            if self.path == "/health":
                self._answer({"model": server.model, "version": server.version})
            elif job := server.jobs.get(self.path.removeprefix("/jobs/")):
                self._answer({"state": job.state, "result": job.result})
            else:
                self._answer({"error": "no such job"}, HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            if not self._allowed():
                return
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/end":
                server.ending = True
            else:
                server.add(content)
            self._answer({})

        def _allowed(self) -> bool:
            if secrets.compare_digest(self.headers.get("Authorization", ""), f"Bearer {server.token}"):
                server.contacted = time.monotonic()  # requests without the token do not keep it alive
                return True
            self._answer({"error": "wrong token"}, HTTPStatus.UNAUTHORIZED)
            return False

        def _answer(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: a line per request would hide what matters."""

    return Handler
