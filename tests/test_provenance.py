"""The commit in records."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from policygrain.provenance import commit


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def state(package: Path) -> str:
    commit.cache_clear()
    return commit(package)


def test_a_commit_names_a_changed_tree_and_an_installed_package_has_none(tmp_path: Path) -> None:
    repository, package = tmp_path / "repository", tmp_path / "repository" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one = 1\n")
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        git(repository, *arguments)
    head = git(package, "rev-parse", "HEAD").strip()
    (repository / "notes.txt").write_text("beside the package")
    assert state(package) == head
    (package / "new.py").write_text("")
    assert state(package) == f"{head}+", "a file that is imported and not in the repository"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("one = 2\n")
    assert state(package) == f"{head}+"
    git(package, "checkout", "--quiet", ".")
    assert commit(package) == f"{head}+", "of the first call in a process"
    installed = repository / ".venv" / "lib" / "package"
    shutil.copytree(package, installed)
    assert state(installed) == "" == state(tmp_path), "though it lies in a repository"
