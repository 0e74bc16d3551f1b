"""Processes and folders of tests are removed at their end, also when the tests are killed: a helper process waits.

python tests/support/leftovers.py FOLDER

The helper waits until its standard input ends, then kills the processes and removes FOLDER.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def with_in_environment(*texts: str) -> list[int]:
    """Processes, other than this one, that were started with all of ``texts`` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environment = path.read_bytes()
            if int(path.parent.name) != os.getpid() and all(os.fsencode(text) in environment for text in texts):
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def swept(folder: Path) -> Iterator[dict[str, str]]:
    """Remove ``folder`` at the end, and kill every process that was started with the environment that this yields."""
    command = [sys.executable, __file__, str(folder)]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield {"SWEPT_WITH": f"{folder}/"}
    finally:
        assert helper.stdin is not None
        helper.stdin.close()
        helper.wait()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = sys.argv[1]
    sys.stdin.read()  # ends when the tests say so, or have ended in any way
    deadline = time.monotonic() + 20
    while (left := with_in_environment(f"SWEPT_WITH={folder}/")) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
