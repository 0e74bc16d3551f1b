"""What several tests share: small studies, and where real data is, if it is."""

import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from .support import machine, slurm

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
settings.register_profile("few", max_examples=3)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, or at the end one process runs them while the others have nothing left to do."""
    longest = ("test_pipeline", "test_trl", "test_graders", "test_tracking")
    order = {name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        if set(machine.OPTIONAL) & _needs(item):
            item.add_marker("optional")


def _needs(item: pytest.Item) -> set[str]:
    """What a test needs beyond the environment, by its marks and its fixtures."""
    named = {need for mark in item.iter_markers("needs") for need in mark.args}
    return named | {
        machine.OF_FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in machine.OF_FIXTURES
    }


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which may take minutes."""
    for need in sorted(_needs(item)):
        if (reason := machine.missing(need)) is not None:
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
    """The initial model alone."""
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
    """A real SLURM of the tests' own."""

    def interrupt(number: int, frame: object) -> None:
        """As Ctrl-C does, so that a CI that ends the tests has their cluster ended too."""
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
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
    """Folder of real problem sets."""
    return machine.problem_sets()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Open an address in a real browser without a window; its standard output is what the options ask for."""
    profile = tmp_path_factory.mktemp("browser")

    def run(address: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(machine.browser()), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--enable-logging=stderr", *options, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return run
