"""What several tests share, and what they need beyond the locked environment, without which they are skipped.

A test names its need by a mark, `@pytest.mark.needs("gpu")`, or by a fixture that has one. `make test` runs without any
of these; `.ci/run` installs them and calls `make test-optional`, where a skip is a failure.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from .support import slurm

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
settings.register_profile("few", max_examples=3)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Fixture → its need.
NEED_OF = {"bubblewrap": "bubblewrap", "chromium": "chromium", "benchmarks_folder": "problem sets", "cluster": "slurm"}
# Needs of default tests, which `make test-optional` runs; the others belong to targets of their own (pyproject.toml).
OPTIONAL = ("bubblewrap", "chromium", "problem sets")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, or at the end one process runs them while the others have nothing left to do."""
    longest = ("test_pipeline", "test_trl", "test_graders", "test_tracking")
    order = {name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        if set(OPTIONAL) & _needs(item):
            item.add_marker("optional")


def _needs(item: pytest.Item) -> set[str]:
    """What a test needs beyond the environment, by its marks and its fixtures."""
    named = {need for mark in item.iter_markers("needs") for need in mark.args}
    return named | {NEED_OF[name] for name in getattr(item, "fixturenames", ()) if name in NEED_OF}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which may take minutes."""
    for need in sorted(_needs(item)):
        if (reason := missing(need)) is not None:
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With NO_SKIPS a test that is skipped has failed, unless another command runs it."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("NO_SKIPS"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "make test-" not in reason:
            report.outcome, report.longrepr = "failed", f"not skipped in CI: {reason}"
    return report


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def in_root(monkeypatch):
    """Study files name each other relative to themselves, datasets relative to the working directory."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """(data, initial model) of the small study, built once for all tests, to be read only."""
    from .support.small import make_start

    return make_start(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def start(made):
    return made[1]


@pytest.fixture(scope="session")
def chat_start(made, tmp_path_factory):
    """An initial model with a chat template, which verl needs."""
    folder = tmp_path_factory.mktemp("start") / "model"
    shutil.copytree(made[1], folder, ignore=shutil.ignore_patterns("start.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    return folder


@pytest.fixture(scope="session")
def cluster():
    """A real SLURM of the tests' own, which ends if the tests are ended by SIGTERM, as a CI does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with slurm.running() as cluster:
            yield cluster
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def bubblewrap():
    """Tests of programs that models write use it."""


@pytest.fixture(scope="session")
def benchmarks_folder():
    return problem_sets()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Open an address in a real browser without a window; its standard output is what the options ask for."""
    profile = tmp_path_factory.mktemp("browser")

    def run(address: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(browser()), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--enable-logging=stderr", *options, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return run


def browser() -> str | None:
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
        case "problem sets":
            there = (problem_sets() / "gsm8k_train.jsonl").exists()
            return None if there else f"no real problem sets in {problem_sets()} (set POLICYGRAIN_DATA)"
        case "verl":
            from importlib.metadata import PackageNotFoundError

            from policygrain.trainers.verl import verl_python

            try:
                verl_python()
            except PackageNotFoundError:
                return "there is no environment with verl (make setup-verl)"
            return None
        case "slurm":
            return slurm.missing()
    raise ValueError(need)
