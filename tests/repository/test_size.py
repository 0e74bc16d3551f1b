"""The repository stays small enough for one person to know: lines, folders, pages and studies."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ..conftest import ROOT


def files(folder: str, pattern: str) -> list[Path]:
    """Files below a folder of the repository, without records and caches."""
    return [path for path in (ROOT / folder).rglob(pattern) if not {"records", "__pycache__"} & {*path.parts}]


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


LIMITS: dict[str, tuple[int, Callable[[], int]]] = {
    "lines of src": (22_000, lambda: lines(files("src", "*.py"))),
    "modules (folders of the package)": (
        13,
        lambda: len({p.parent for p in files("src/policygrain", "*/__init__.py")}),
    ),
    "lines of lab": (5_500, lambda: lines([*files("lab/src", "*.py"), *files("lab/research", "*.py")])),
    "lines of the lab's tests": (3_000, lambda: lines(files("lab/tests", "*.py"))),
    "lines of tests": (17_900, lambda: lines(files("tests", "*.py"))),
    "pages of docs": (25, lambda: len(files("docs", "*.md"))),
    "words of docs": (30_000, lambda: sum(len(path.read_text().split()) for path in files("docs", "*.md"))),
    "studies": (10, lambda: len(files("studies", "*.yaml"))),
    "lines of README": (90, lambda: lines([ROOT / "README.md"])),
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_kept(what):
    limit, measured = LIMITS[what]
    assert measured() <= limit, what
