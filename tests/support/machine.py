"""What tests need beyond the locked environment: the only place that asks whether it is here, and skips where not.

A test names its need by a mark, `@pytest.mark.needs("gpu")`, or by a fixture that has one (conftest.py). `make test`
runs without any of these; `.ci/run` installs them and calls `make test-optional`, where a skip is a failure.
"""

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
OPTIONAL = ("bubblewrap", "chromium", "namespaces", "problem sets")


def browser() -> str | None:
    """The first browser that is installed."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def problem_sets() -> Path:
    """Folder of real problem sets: POLICYGRAIN_DATA, else ../shared/benchmarks beside the checkout."""
    return Path(os.environ.get("POLICYGRAIN_DATA", ROOT.parent / "shared" / "benchmarks")).resolve()


@cache
def missing(need: str) -> str | None:
    """Why this machine lacks it, and what to do; None where it is here."""
    # Imported here: the objective is tested with the oldest Python and torch alone, too.
    match need:
        case "bubblewrap":
            from policygrain.errors import UserError
            from policygrain.grading.sandbox import isolation

            try:
                isolation()
            except UserError as error:
                return str(error)
            return None
        case "chromium":
            return None if browser() else f"none of {', '.join(BROWSERS)} is here (apt-get install chromium)"
        case "gpu":
            import torch

            return None if torch.cuda.is_available() else "torch sees no GPU (make test-gpu runs this on one)"
        case "namespaces":
            forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
            return tried("unshare", "--user", "--map-root-user", "sh", "-c", forbid)
        case "problem sets":
            there = (problem_sets() / "gsm8k_train.jsonl").exists()
            return None if there else f"no real problem sets in {problem_sets()} (set POLICYGRAIN_DATA)"
        case "verl":
            from importlib.metadata import PackageNotFoundError

            from policygrain.trainers.verl_settings import verl_python

            try:
                verl_python()
            except PackageNotFoundError:
                return "there is no environment with verl (make setup-verl)"
            return None
        case "slurm":
            return slurm.missing()
    raise ValueError(need)


def tried(*command: str) -> str | None:
    """Why a command fails here; None where it succeeds."""
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not possible here: {getattr(error, 'stderr', None) or error}"
    return None
