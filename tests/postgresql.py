"""A PostgreSQL of the tests' own, in a temporary folder: the distribution's programs, a port that is free."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"  # the distribution's; the server refuses to be root's
INSTALL = "apt-get install -y --no-install-recommends postgresql"


def _programs() -> Path | None:
    """Where the newest server's programs are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def missing() -> str | None:
    """Why none can be started here, and what to do about it; None where one can."""
    if _programs() is None:
        return f"no PostgreSQL here: {INSTALL}"
    if importlib.util.find_spec("psycopg2") is None:
        return "no psycopg2 here, by which MLflow's server talks to PostgreSQL: pip install psycopg2-binary"
    if os.geteuid() != 0:
        return "PostgreSQL runs as a user of its own here, and to become it the tests must be root's, as in CI"
    return None


@contextmanager
def database() -> Iterator[str]:
    """The URI of an empty database, for as long as this lasts."""
    programs, user = _programs(), pwd.getpwnam(USER)
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))  # a socket's path is short
    os.chown(folder, user.pw_uid, user.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(program: str, *arguments: str) -> None:
        command = [str(programs / program), "--pgdata", str(folder / "data"), *arguments]
        done = subprocess.run(
            command,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            # A pipe would be held open by the server that pg_ctl leaves behind.
            stdout=(folder / "log").open("ab"),
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, (folder / "log").read_text()[-3000:]

    try:
        call("initdb", "--auth", "trust", "--username", USER, "--no-sync", "--encoding", "UTF8", "--locale", "C")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
        call("pg_ctl", "--wait", "--options", options, "start")
        try:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "--wait", "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
