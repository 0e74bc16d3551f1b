"""What several tests share: small studies, and where real data is, if it is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from .support import slurm

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
settings.register_profile("few", max_examples=3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, or at the end one process runs them while the others have nothing left to do."""
    longest = ("test_pipeline", "test_trl", "test_math", "test_mlflow_sync")
    order = {name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With NO_SKIPS, as in CI, a test that is skipped has failed, unless another command runs it."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("NO_SKIPS"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "make test-" not in reason:
            report.outcome, report.longrepr = "failed", f"not skipped in CI: {reason}"
    return report


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Study files name each other relative to themselves, datasets relative to the working directory."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(data, initial model) of the small study, built once for all tests, to be read only."""
    from .support.small import make_start

    return make_start(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def start(made: tuple[Path, Path]) -> Path:
    """The initial model alone."""
    return made[1]


@pytest.fixture(scope="session")
def chat_start(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An initial model with a chat template, which verl needs."""
    folder = tmp_path_factory.mktemp("start") / "model"
    shutil.copytree(made[1], folder, ignore=shutil.ignore_patterns("start.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[slurm.Cluster]:
    """A real SLURM of the tests' own."""
    if (reason := slurm.missing()) is not None:
        pytest.skip(reason)

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
def bubblewrap() -> None:
    """Skips tests of programs where none can be kept apart."""
    # Imported here: the objective is tested with the oldest Python and torch alone, too.
    from policygrain.errors import UserError
    from policygrain.grading.sandbox import isolation

    try:
        isolation()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def benchmarks_folder() -> Path:
    """Folder of real problem sets: POLICYGRAIN_DATA, else ../shared/benchmarks beside the checkout."""
    folder = Path(os.environ.get("POLICYGRAIN_DATA", ROOT.parent / "shared" / "benchmarks"))
    if not (folder / "gsm8k_train.jsonl").exists():
        pytest.skip(f"no real problem sets in {folder} (set POLICYGRAIN_DATA)")
    return folder.resolve()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Open an address in a real browser without a window; its standard output is what the options ask for."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(names)} is here (apt-get install chromium)")
    profile = tmp_path_factory.mktemp("browser")

    def run(address: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--enable-logging=stderr", *options, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return run
