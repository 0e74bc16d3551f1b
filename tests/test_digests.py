"""Digests of files, models and settings, and the commit in records."""

import shutil
import subprocess
from pathlib import Path

import pytest

from policygrain import digests
from policygrain.provenance import commit

FILES = [
    *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "config.json", "generation_config.json", "adapter_config.json", "modeling_custom.py"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "chat_template.jinja"),
]


@pytest.fixture
def model(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text(f"{name:40}")
    return tmp_path


def test_a_change_of_any_file_that_output_depends_on_changes_a_model_s_digest(model):
    """Its content, its absence, and two contents exchanged; no other file, and not the folder's name."""
    before, found = digests.of_model(model), set()
    for path in [model / name for name in FILES]:
        content = path.read_text()
        path.write_text("something else")
        found.add(digests.of_model(model))
        path.unlink()
        found.add(digests.of_model(model))
        path.write_text(content)
    assert len(found) == 2 * len(FILES) and before not in found
    first, second = (model / name for name in FILES[:2])
    one, other = first.read_text(), second.read_text()
    first.write_text(other), second.write_text(one)
    assert digests.of_model(model) not in {before, *found}
    first.write_text(one), second.write_text(other)
    (model / "README.md").write_text("a model card")
    (model / "start.json").write_text('{"digest": "of an earlier save"}')
    assert digests.of_model(model.rename(model.with_name("renamed"))) == before


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def state(package: Path) -> str:
    commit.cache_clear()
    return commit(package)


def test_a_commit_names_a_changed_tree_and_an_installed_package_has_none(tmp_path):
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
