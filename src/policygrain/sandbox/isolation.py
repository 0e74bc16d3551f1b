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


def readable() -> list[str]:
    """Folders that an interpreter needs: its own, and those of system libraries."""
    own = [sys.base_prefix, str(Path(sys._base_executable).resolve().parent.parent)]  # type: ignore[attr-defined]
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]
    return [path for path in dict.fromkeys([*own, *system]) if os.path.isdir(path)]


def command(kind: Isolation, handle: int) -> list[str]:
    """The command line of a fresh interpreter that reads its job from the file ``handle``."""
    interpreter = [sys._base_executable, "-I", "-S", "-B", "-c", INSIDE.read_text(encoding="utf-8"), str(handle)]  # type: ignore[attr-defined]
    if kind == "landlock":
        return interpreter
    bound: list[str] = []
    for path in readable():
        bound += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    private = ["--proc", "/proc", "--dev", "/dev", "--size", str(TEMPORARY), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    alone = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    alone += ["--uid", "65534", "--gid", "65534"]
    return [shutil.which("bwrap") or "bwrap", *alone, *bound, *private, "--", *interpreter]
