"""Which records may be published, and whether a study is finished."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.provenance import commit, in_history, is_same_package
from policygrain.report.completeness import broken, check_commits, check_complete, made_at, missing_results
from policygrain.results import StudyResults


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository with two commits, of which the second changes a page and not the package."""
    found = tmp_path / "repository" / "src" / "package"
    found.mkdir(parents=True)
    (found / "__init__.py").write_text("one = 1\n")
    git(found.parents[1], "init", "--quiet")
    git(found, "add", ".")
    git(found, "commit", "--quiet", "-m", "first")
    (found.parents[1] / "page.md").write_text("two")
    git(found, "add", "--all", str(found.parents[1]))
    git(found, "commit", "--quiet", "-m", "second")
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
    assert commit(package) == f"{head}+"
    git(package, "checkout", "--quiet", ".")
    assert commit(package) == f"{head}+", "of the first call in a process"


def test_an_installed_package_has_no_commit_though_it_lies_in_a_repository(package: Path) -> None:
    installed = package.parents[1] / ".venv" / "lib" / "package"
    shutil.copytree(package, installed)
    assert state(installed) == "" == state(package.parents[2])


def test_history_and_source_of_commits(package: Path) -> None:
    first, second = git(package, "rev-list", "--reverse", "HEAD").split()
    assert in_history(first, package) and in_history(second, package)
    git(package, "checkout", "--quiet", first)
    assert not in_history(second, package), "of another branch"
    for unknown in ("0" * 40, "HEAD", "--all", "", second[:12]):
        assert not in_history(unknown, package)
    assert is_same_package(first, second, package)
    (package / "__init__.py").write_text("")
    git(package, "commit", "--quiet", "-am", "third")
    assert not is_same_package(second, git(package, "rev-parse", "HEAD").strip(), package)


def rewrite(results: Path, pattern: str, *keys: str, to: str) -> None:
    for path in results.glob(pattern):
        content = json.loads(path.read_text())
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to
        path.write_text(json.dumps(content))


@pytest.fixture
def copied(results: Path, package: Path, tmp_path: Path) -> Path:
    """A study whose runs were made at the first commit of the repository, and nothing says where the rest was."""
    found = Path(shutil.copytree(results, tmp_path / "results" / "smoke"))
    first = git(package, "rev-list", "--reverse", "HEAD").split()[0]
    rewrite(found, "runs/*/*/summary.json", "environment", "commit", to=first)
    return found


def test_records_of_several_clean_commits_may_be_published_and_are_counted(copied: Path, package: Path) -> None:
    first, second = git(package, "rev-list", "--reverse", "HEAD").split()
    runs = len([*copied.glob("runs/*/*/summary.json")])
    assert check_commits(StudyResults(copied), package) == f"{runs} records at {first[:12]}"
    rewrite(copied, "estimators/*.json", "commit", to=second)
    rewrite(copied, "start/*/evaluation/records.json", "facts", "commit", to=second)
    said = check_commits(StudyResults(copied), package)
    assert said == f"{runs} records at {first[:12]}, 4 records at {second[:12]}"
    (package / "__init__.py").write_text("")
    git(package, "commit", "--quiet", "-am", "third")
    rewrite(copied, "rounds/seed0.json", "commit", to=git(package, "rev-parse", "HEAD").strip())
    assert check_commits(StudyResults(copied), package).endswith("; the source of the package differs between them")


@pytest.mark.parametrize(
    ("pattern", "keys", "to", "message"),
    [
        ("runs/tepo/seed0/summary.json", ["environment", "commit"], "{head}+", r"tepo/seed0/summary\.json was"),
        ("rounds/*.json", ["commit"], "{head}+", r"seed0\.json, rounds/seed1\.json were made from a"),
        ("estimators/*.json", ["commit"], "f" * 40, r"made at f{12}, which is not in the history of this repository"),
        ("runs/*/*/evaluation/records.json", ["facts", "commit"], "", r"not known at which .* \d+ more were"),
    ],
)
def test_other_records_are_refused(
    pattern: str, keys: list[str], to: str, message: str, copied: Path, package: Path
) -> None:
    head = git(package, "rev-parse", "HEAD").strip()
    rewrite(copied, pattern, *keys, to=to.format(head=head))
    with pytest.raises(UserError, match=rf"smoke: .*{message}.*rule 10 of docs/design\.md"):
        check_commits(StudyResults(copied), package)


def test_without_a_repository_nothing_is_published_and_archives_are_made_with_a_note(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "not run from a working copy" in broken(made_at(StudyResults(copied)), tmp_path)[0]
    out = tmp_path / "study.zip"
    # The commits of the made-up package are not in the repository of this one.
    assert main(["freeze", str(copied), "--published", "--out", str(out)]) == 2
    assert "rule 10 of docs/design.md" in capsys.readouterr().err and not out.exists()
    assert main(["freeze", str(copied), "--out", str(out)]) == 0
    assert "policygrain: note: " in capsys.readouterr().err and out.exists()


# ---- every result is there -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drawn study; of what was made up without content, an empty file."""
    folder = tmp_path_factory.mktemp("finished") / "smoke"
    shutil.copytree(results, folder)
    for path in missing_results(StudyResults(folder)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "runs/tepo/seed1/summary.json",
        "runs/tepo/seed1/evaluation/records.json",
        "start/seed0/evaluation/records.json",
        "estimators/seed1.json",
        "rounds/seed0.json",
        "figures/dynamics.svg",
        "tables/claims.csv",
        "report.html",
        "mlflow.json",
    ],
)
def test_any_result_that_is_gone_is_noticed(name: str, finished: Path, tmp_path: Path) -> None:
    check_complete(StudyResults(finished))
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"not finished: 1 of its results are missing, such as {re.escape(name)}"):
        check_complete(StudyResults(folder))


def test_claims_of_a_study_that_must_be_complete(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    assert main(["claims", str(folder), "--brief", "--complete"]) == 0
    assert f"\nReport: {folder}/report.html " in capsys.readouterr().out
    (folder / "report.html").unlink()
    assert main(["claims", str(folder), "--brief", "--complete"]) == 2
    assert "such as report.html" in capsys.readouterr().err


def test_metrics_that_are_gone_or_cut_off_are_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    metrics = folder / "runs" / "tepo" / "seed1" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match=r"tepo/seed1/metrics\.jsonl: 1 steps of \d+.* remove its folder"):
        check_complete(StudyResults(folder))
    metrics.unlink()
    with pytest.raises(UserError, match=r"tepo/seed1/metrics\.jsonl: cannot be read.* remove its folder"):
        check_complete(StudyResults(folder))


def test_a_record_that_is_cut_off_is_named(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    shutil.copytree(finished, folder)
    summary = folder / "runs" / "tepo" / "seed1" / "summary.json"
    summary.write_text(summary.read_text()[:50])
    with pytest.raises(UserError, match=r"tepo/seed1/summary\.json"):
        check_complete(StudyResults(folder))
