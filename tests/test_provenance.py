"""The commit in records."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from policygrain.provenance import commit


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository with one commit."""
    found = tmp_path / "repository" / "src" / "package"
    found.mkdir(parents=True)
    (found / "__init__.py").write_text("one = 1\n")
    git(found.parents[1], "init", "--quiet")
    git(found, "add", ".")
    git(found, "commit", "--quiet", "-m", "first")
    return found


def state(package: Path) -> str:
    commit.cache_clear()
    return commit(package)


def test_a_commit_names_a_changed_tree(package: Path) -> None:
    head = git(package, "rev-parse", "HEAD").strip()
    assert state(package) == head
    (package.parents[1] / "notes.txt").write_text("beside the package")
    assert state(package) == head
    (package / "new.py").write_text("")
    assert state(package) == f"{head}+", "a file that is imported and not in the repository"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("one = 2\n")
    assert state(package) == f"{head}+"
    git(package, "checkout", "--quiet", ".")
    assert commit(package) == f"{head}+", "of the first call in a process"


def test_an_installed_package_has_no_commit_though_it_lies_in_a_repository(package: Path) -> None:
    installed = package.parents[1] / ".venv" / "lib" / "package"
    shutil.copytree(package, installed)
    assert state(installed) == "" == state(package.parents[2])
