"""Fetching from a local server: download, checksums, conversion."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policygrain.data import registry, set_files
from policygrain.data.fetch import blob_id, fetch
from policygrain.data.problem import read_problems
from policygrain.errors import UserError

from ..support.problem_sets import PAIRS, SOURCE, made_up, raw


class Server(http.server.ThreadingHTTPServer):
    """Serves one file under every path and counts the requests."""

    content = SOURCE
    requests = 0
    cut_after: int | None = None  # bytes, after which a reply ends


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        if "missing" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content[: self.server.cut_after])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        monkeypatch.setenv("POLICYGRAIN_MIRROR", f"http://127.0.0.1:{running.server_address[1]}/")
        yield running
        running.shutdown()


def test_a_set_is_fetched_once(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert fetch(made_up(), folder).endswith("made_up.jsonl: 3000 problems")
    problems = read_problems(folder / "made_up.jsonl")
    assert [(p.problem, p.answer) for p in problems] == PAIRS and problems[7].id == "made-up-7"
    assert [path.name for path in folder.iterdir()] == ["made_up.jsonl"] and server.requests == 1
    assert fetch(made_up(), folder).endswith("there already") and server.requests == 1
    assert set_files.check(made_up(), folder) == []


def test_an_incomplete_or_wrong_download_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.cut_after = 1000
    with pytest.raises(UserError, match="cannot be fetched"):
        fetch(made_up(), tmp_path)
    server.cut_after, server.content = None, b"?" * 5000
    with pytest.raises(UserError, match="wrong checksum"):
        fetch(made_up(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_count_or_content_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3000 problems in its source instead of 3001"):
        fetch(made_up(count=3001), tmp_path)
    with pytest.raises(UserError, match=r"mapping of columns is wrong for it \(by hand\)"):
        fetch(made_up(content="0" * 64), tmp_path)
    assert not (tmp_path / "made_up.jsonl").exists()


def test_a_missing_column_names_file_and_line(server: Server, tmp_path: Path) -> None:
    lines = SOURCE.split(b"\n")
    lines[4] = b'{"n": 4, "quest\xc2\xadion": "?"}'
    server.content = b"\n".join(lines)
    with pytest.raises(UserError, match=r"\.jsonl, line 5: no column 'question'; there is 'n', 'quest"):
        fetch(made_up(server.content), tmp_path)
    server.content = SOURCE.replace(b"{6}", b"{}")
    with pytest.raises(UserError, match=r"\.jsonl, line 4: the answer is empty"):
        fetch(made_up(server.content), tmp_path)


def test_a_missing_file_and_an_unreachable_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = made_up().home
    assert home is not None
    with pytest.raises(UserError, match="the server answered 404"):
        fetch(made_up(home={**home.model_dump(), "path": "missing.jsonl"}), tmp_path)
    monkeypatch.setenv("POLICYGRAIN_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"cannot be fetched: .*refused.*HTTPS_PROXY.*POLICYGRAIN_MIRROR"):
        fetch(made_up(), tmp_path)


def test_a_set_without_a_source_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No pinned source .*put made_up\.jsonl there yourself"):
        fetch(made_up(home=None), tmp_path)


def test_a_wrong_file_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "made_up.jsonl").write_text('{"id": 1, "problem": "1+1", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"1 problems instead of 3000.*not overwritten"):
        fetch(made_up(), tmp_path)
    assert server.requests == 0


REBUILT: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "gsm8k_train": lambda _, row: {"question": row["problem"], "answer": row["solution"]},
    "aime25": lambda i, row: {
        "id": 90 + i,
        "problem": row["problem"],
        "solution": row["answer"],
        "answer": row["answer"],
        "url": row["url"],
        "question": row["problem"],
    },
}


@pytest.mark.parametrize("name", REBUILT)
def test_fetching_a_published_file_rebuilt_byte_for_byte(
    name: str, server: Server, tmp_path: Path, benchmarks_folder: Path
) -> None:
    """Recorded files that contain all columns of their source: the source is rebuilt and has the pinned blob id."""
    dataset = registry.dataset(name)
    rows = raw(benchmarks_folder, dataset.file)
    server.content = "".join(json.dumps(REBUILT[name](i, row)) + "\n" for i, row in enumerate(rows)).encode()
    assert isinstance(dataset.home, registry.GitHome) and blob_id(server.content) == dataset.home.blob
    fetch(dataset, tmp_path)
    assert set_files.check(dataset, tmp_path) == []
    fetched = read_problems(tmp_path / dataset.file)
    assert [(p.id, p.problem, p.answer) for p in fetched] == [(r["id"], r["problem"], r["answer"]) for r in rows]
