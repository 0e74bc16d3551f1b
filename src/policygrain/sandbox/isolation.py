"""The command line of a fresh interpreter that is kept apart: by bubblewrap's namespaces, or by Landlock alone."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

Isolation = Literal["bubblewrap", "landlock"]
TEMPORARY = 16 * 2**20  # bytes of the folder in memory that a program under bubblewrap can write to
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


def command(kind: Isolation, handle: int) -> list[str]:
    """The command line of a fresh interpreter that reads its job from the file ``handle``."""
    fresh = [str(interpreter()), "-I", "-S", "-B", "-c", INSIDE.read_text(encoding="utf-8"), str(handle)]
    if kind == "landlock":
        return fresh
    bound: list[str] = []
    for path in readable():
        bound += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    private = ["--proc", "/proc", "--dev", "/dev", "--size", str(TEMPORARY), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    alone = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    alone += ["--uid", "65534", "--gid", "65534"]
    return [shutil.which("bwrap") or "bwrap", *alone, *bound, *private, "--", *fresh]
