"""A PostgreSQL server for tests, in a temporary folder and on a free port, from the distribution's programs."""

from __future__ import annotations

import importlib.util
import os
import pwd
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..support.leftovers import swept

USER = "postgres"  # the distribution's; the server refuses to be root's
INSTALL = "apt-get install -y --no-install-recommends postgresql"


def _programs() -> Path | None:
    """Where the newest server's programs are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def missing() -> str | None:
    """Why no server can be started here and what to install; None where one can."""
    if _programs() is None:
        return f"no PostgreSQL here: {INSTALL}"
    if importlib.util.find_spec("psycopg2") is None:
        return "no psycopg2 here, by which MLflow's server talks to PostgreSQL: pip install psycopg2-binary"
    if os.geteuid() != 0:
        return "PostgreSQL does not run as root; to start it as another user, tests must run as root, as in CI"
    return None


@contextmanager
def database() -> Iterator[str]:
    """Yield the URI of an empty database; the server stops at the end."""
    programs, user = _programs(), pwd.getpwnam(USER)
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))  # a socket's path is short
    os.chown(folder, user.pw_uid, user.pw_gid)
    log = folder / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with swept(folder) as mark, log.open("ab") as out:

        def begin(program: str, *arguments: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [str(programs / program), "-D", str(folder / "data"), *arguments],
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                cwd=folder,
                env={**os.environ, **mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

        made = begin("initdb", "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8", "--locale", "C")
        assert made.wait(120) == 0, log.read_text()[-3000:]
        server = begin("postgres", "-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1")
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, check=False).returncode != 0:
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
