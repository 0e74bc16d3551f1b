"""The environment that verl is installed in, which is not that of this process: `make setup-verl`."""

from __future__ import annotations

import functools
import os
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from ..provenance import PACKAGE

PYTHON = "POLICYGRAIN_VERL_PYTHON"  # names another interpreter with verl


def verl_python() -> Path:
    """The interpreter of verl's environment. PackageNotFoundError if there is none."""
    named = os.environ.get(PYTHON)
    places = [Path(named)] if named else [Path(".venv-verl/bin/python"), PACKAGE.parents[1] / ".venv-verl/bin/python"]
    for place in places:
        if place.exists():
            return place.absolute()
    raise PackageNotFoundError("verl")


def verl_version() -> str:
    """The version of verl in its environment. PackageNotFoundError if it is not there."""
    return _version_in(verl_python())


@functools.cache
def _version_in(python: Path) -> str:
    command = [str(python), "-c", "from importlib.metadata import version; print(version('verl'))"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise PackageNotFoundError("verl") from error
