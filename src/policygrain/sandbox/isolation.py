"""The command line of a fresh interpreter that bubblewrap keeps apart from everything."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

INSIDE = Path(__file__).with_name("inside.py")


def interpreter() -> Path:
    """The program that runs programs: this interpreter, outside of any virtual environment."""
    return Path(sys._base_executable).resolve()  # type: ignore[attr-defined]


def readable() -> list[str]:
    """Folders that an interpreter needs: its own `bin` and `lib`, and system libraries; not all of its prefix."""
    prefixes = dict.fromkeys([sys.base_prefix, str(interpreter().parent.parent)])
    own = [f"{prefix}/{part}" for prefix in prefixes for part in ("bin", "lib", "lib64")]
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]
    return [path for path in dict.fromkeys([*own, *system]) if os.path.isdir(path)]


def bwrap() -> str | None:
    """Where the command is: on the path, or beside this interpreter, where conda puts it."""
    return shutil.which(
        "bwrap", path=os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    )


@functools.cache
def arguments() -> list[str]:
    """The arguments of bubblewrap, but for the filter, and the command of the interpreter in it."""
    bound: list[str] = []
    for path in readable():
        bound += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    # Nothing is mounted that can be written to: its pages would not count as memory of the program.
    bound += ["--dev-bind", os.devnull, os.devnull, "--remount-ro", "/", "--chdir", "/"]
    # `--unshare-all` alone goes on without a user namespace where there is none.
    alone = [
        "--unshare-user",
        "--unshare-all",
        "--die-with-parent",
        "--cap-drop",
        "ALL",
        "--uid",
        "65534",
        "--gid",
        "65534",
    ]
    source = INSIDE.read_text(encoding="utf-8")
    return [*alone, *bound, "--", str(interpreter()), "-I", "-S", "-B", "-c", source]


def command(filter_handle: int) -> list[str]:
    """The command line of a fresh interpreter under the filter that can be read from ``filter_handle``."""
    return [bwrap() or "bwrap", "--seccomp", str(filter_handle), *arguments()]
