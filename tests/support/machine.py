"""What tests need beyond the locked environment: the only place that asks whether it is here, and skips where not.

A test names its need by a mark, `@pytest.mark.needs("bubblewrap")`, or by a fixture that has one (conftest.py). `make
test` runs on a machine that has none of these; `.ci/run` installs them and calls `make test-optional`, where a skip is
a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from . import slurm

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Fixtures of conftest.py that have a need.
OF_FIXTURES = {
    "bubblewrap": "bubblewrap",
    "chromium": "chromium",
    "benchmarks_folder": "problem sets",
    "cluster": "slurm",
}
# Needs of default tests, which `make test-optional` runs; the others belong to targets of their own (pyproject.toml).
OPTIONAL = ("bubblewrap", "chromium", "compiler", "namespaces", "problem sets")


def browser() -> str | None:
    """The first browser that is installed."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def problem_sets() -> Path:
    """Folder of real problem sets: POLICYGRAIN_DATA, else ../shared/benchmarks beside the checkout."""
    return Path(os.environ.get("POLICYGRAIN_DATA", ROOT.parent / "shared" / "benchmarks")).resolve()


@cache
def missing(need: str) -> str | None:
    """Why this machine lacks it, and what to do; None where it is here."""
    return _ASKED[need]()


def _bubblewrap() -> str | None:
    # Imported here: the objective is tested with the oldest Python and torch alone, too.
    from policygrain.errors import UserError
    from policygrain.grading.sandbox import isolation

    try:
        isolation()
    except UserError as error:
        return str(error)
    return None


def _chromium() -> str | None:
    return None if browser() else f"none of {', '.join(BROWSERS)} is here (apt-get install chromium)"


def _compiler() -> str | None:
    return None if shutil.which("g++") else "torch.compile needs a C++ compiler (apt-get install g++)"


def _gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch sees no GPU (make test-gpu runs this on one)"


def _namespaces() -> str | None:
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return f"namespaces cannot be forbidden for a process: {getattr(error, 'stderr', None) or error}"
    return None


def _problem_sets() -> str | None:
    folder = problem_sets()
    return (
        None if (folder / "gsm8k_train.jsonl").exists() else f"no real problem sets in {folder} (set POLICYGRAIN_DATA)"
    )


def _verl() -> str | None:
    from importlib.metadata import PackageNotFoundError

    from policygrain.trainers.verl_config import verl_python

    try:
        verl_python()
    except PackageNotFoundError:
        return "there is no environment with verl (make setup-verl)"
    return None


_ASKED = {
    "bubblewrap": _bubblewrap,
    "chromium": _chromium,
    "compiler": _compiler,
    "gpu": _gpu,
    "namespaces": _namespaces,
    "problem sets": _problem_sets,
    "slurm": slurm.missing,
    "slurm with networks": lambda: slurm.missing(apart=True),
    "verl": _verl,
}
