"""What every folder uses: digests, the commit in records, paths, the lock of a study, tables as text, merging."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from policygrain import digests
from policygrain.merging import merge
from policygrain.paths import Folder, Inside, RunFolder, StudyFolder
from policygrain.provenance import commit
from policygrain.text import columns, latex_table, markdown_table

MERGED = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())["merged"]
FILES = [
    *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "config.json", "generation_config.json", "adapter_config.json", "modeling_custom.py"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "chat_template.jinja"),
]


def test_a_change_of_any_file_that_output_depends_on_changes_a_model_s_digest(tmp_path):
    """Its content, its absence, and two contents exchanged; no other file, and not the folder's name."""
    paths, found = [tmp_path / name for name in FILES], set()
    for path in paths:
        path.write_text(f"{path.name:40}")
    before = digests.of_model(tmp_path)
    for path in paths:
        content = path.read_text()
        path.write_text("something else")
        found.add(digests.of_model(tmp_path))
        path.unlink()
        found.add(digests.of_model(tmp_path))
        path.write_text(content)
    assert len(found) == 2 * len(FILES) and before not in found
    one, other = (path.read_text() for path in paths[:2])
    paths[0].write_text(other), paths[1].write_text(one)
    assert digests.of_model(tmp_path) not in {before, *found}
    paths[0].write_text(one), paths[1].write_text(other)
    (tmp_path / "README.md").write_text("a model card")
    (tmp_path / "start.json").write_text('{"digest": "of an earlier save"}')
    assert digests.of_model(tmp_path.rename(tmp_path.with_name("renamed"))) == before


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_commit_names_a_changed_tree_and_an_installed_package_has_none(tmp_path):
    repository, package = tmp_path / "repository", tmp_path / "repository" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one = 1\n")
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        git(repository, *arguments)
    head, state = git(package, "rev-parse", "HEAD").strip(), commit.__wrapped__  # without its cache
    (repository / "notes.txt").write_text("beside the package")
    assert state(package) == head
    (package / "new.py").write_text("")
    assert state(package) == f"{head}+", "a file that is imported and not in the repository"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("one = 2\n")
    assert commit(package) == f"{head}+"
    git(package, "checkout", "--quiet", ".")
    assert commit(package) == f"{head}+", "of the first call in a process"
    installed = repository / ".venv" / "lib" / "package"
    shutil.copytree(package, installed)
    assert state(installed) == "" == state(tmp_path), "though it lies in a repository"


def test_products_are_all_of_a_run_but_its_lock():
    """What a run of other settings must not find in its folder; `config` is last, as it says whose the others are."""
    run = RunFolder(Path("x"))
    places = [getattr(run, name) for name, member in vars(RunFolder).items() if isinstance(member, Inside)]
    named = {place.path if isinstance(place, Folder) else place for place in places}
    assert named - {run.lock} == set(run.products) and run.products[-1] == run.config


LOCK = """
import sys
from pathlib import Path
from policygrain.commands.workflow import lock_study
from policygrain.paths import StudyFolder
lock_study(StudyFolder(Path(sys.argv[1])))
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(folder: StudyFolder) -> Iterator[subprocess.Popen[str]]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", LOCK, str(folder.path)], text=True, **pipes) as started:
        yield started
        started.kill()


def test_of_two_workflows_the_second_is_refused_until_the_first_is_killed(tmp_path):
    folder = StudyFolder(tmp_path / "results")
    with process(folder) as first:
        assert first.stdout.readline() == "locked\n"
        with process(folder) as second:
            assert second.stdout.readline() == ""
            said = second.stderr.read()
            assert f"{folder.path}: this study is being run already" in said and f"(process {first.pid} on " in said
        first.kill()
        first.wait()
        with process(folder) as second:
            assert second.stdout.readline() == "locked\n"


def test_tables():
    header, rows = ["arm", "n", "gain"], [["a_b", "3", "**-1.5**"], ["x|y", "10", "±2"]]
    assert columns(rows, header, "lr") == ["arm      n      gain", "a_b      3  **-1.5**", "x|y     10        ±2"]
    body = ["| arm | n | gain |", "|---|---:|---:|", "| a_b | 3 | **-1.5** |", r"| x\|y | 10 | ±2 |", ""]
    assert markdown_table(header, rows, "lr").split("\n") == body
    lines = [" ".join(line.split()) for line in latex_table(header, rows, "lr").splitlines()]
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[4:6] == [r"a\_b & 3 & \textbf{$-$1.5} \\", r"x|y & 10 & $\pm$2 \\"]


@pytest.mark.parametrize(("below", "above", "merged"), MERGED)
def test_merging(below, above, merged):
    before = json.dumps([below, above])
    assert merge(below, above) == merged == merge(merged, above) and merge(below, {}) == below
    assert merge(below, above, replace=above) == {**below, **above}
    assert json.dumps([below, above]) == before
