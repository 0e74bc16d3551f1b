"""What every folder uses: digests, commits, models on the hub, paths, the lock of a study, tables as text, merging."""

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
from policygrain.commands.workflow import write_settings
from policygrain.errors import UserError
from policygrain.evaluate.evaluation import evaluate_study
from policygrain.hub import identity, pinned
from policygrain.merging import merge
from policygrain.paths import DataFolder, Folder, Inside, RunFolder, StudyFolder
from policygrain.provenance import commit
from policygrain.records import write_record
from policygrain.results import StudyResults, run_config
from policygrain.study.runs import run_matrix
from policygrain.study.schema import Model
from policygrain.text import columns, latex_table, markdown_table
from policygrain.trainers.run import run_config as config_of_run

from .support.files import flip_bit
from .support.small import small_study

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


OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, made, monkeypatch):
    """The cache of a machine without network that has two commits of some/model, of which OLD is `main`."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "models--some--model"
    for revision in (OLD, NEW):
        shutil.copytree(made[1], folder / "snapshots" / revision, ignore=shutil.ignore_patterns("start.json"))
    flip_bit(folder / "snapshots" / NEW / "model.safetensors")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(OLD)
    return folder


def test_a_name_is_the_commit_that_is_in_the_cache(cache):
    assert identity("some/model") == identity("some/model", "main") == OLD
    assert identity("some/model", NEW) == NEW
    assert pinned(Model(start="some/model")).revision == OLD
    assert pinned(Model(start="tiny")).revision is None
    (cache / "refs" / "main").write_text(NEW)
    assert identity("some/model") == NEW
    with pytest.raises(UserError, match=r"'other/model' is neither a folder with .*`hf download other/model`"):
        identity("other/model")


def written(name: str, results: StudyFolder) -> dict[str, str]:
    write_settings(small_study(model={"start": name}), results)
    folder = results.settings("x").parent
    return {str(path.relative_to(folder).with_suffix("")): path.read_text() for path in folder.rglob("*.json")}


def test_another_commit_or_other_weights_start_again_what_is_made_from_them(cache, tmp_path):
    results, start = StudyFolder(tmp_path / "results"), tmp_path / "start"
    shutil.copytree(cache / "snapshots" / OLD, start)
    for name, folder, change in (
        ("some/model", cache, lambda: (cache / "refs" / "main").write_text(NEW)),
        (str(start), start, lambda: flip_bit(start / "model.safetensors")),
    ):
        before = written(name, results)
        change()
        after = written(name, results)
        differ = {key for key in before if before[key] != after[key]}
        assert differ == {"arms/grpo", "evaluation/grpo", "evaluation/start"}
        shutil.rmtree(folder)
        assert written(name, results) == after, "what was recorded stands where the model is not here"


def test_runs_record_their_commit_and_are_not_compared_with_those_of_another(cache, made, tmp_path):
    study, folder = small_study(model={"start": "some/model"}, seeds=[0, 1]), StudyFolder(tmp_path / "results")
    (arm,) = run_matrix(study).arms.values()
    for seed in (0, 1):
        config = config_of_run(study, arm, seed, "some/model", DataFolder(made[0]))
        write_record(folder.run(arm.name, seed).config, config)
        folder.run(arm.name, seed).metrics.touch()
        (cache / "refs" / "main").write_text(NEW)
    first = run_config(folder.run(arm.name, 0))
    assert first.inputs.start_model == OLD
    with pytest.raises(UserError, match=f"the initial model changed between runs: {OLD} of .*seed0, {NEW} of .*seed1"):
        _ = StudyResults(folder.path, study).trained
    for field in ("train", "validation"):
        inputs = first.inputs.model_copy(update={field: "other"})
        write_record(folder.run(arm.name, 1).config, config.model_copy(update={"inputs": inputs}))
        with pytest.raises(UserError, match=rf"the {field}\w* problems changed between runs: .*seed0, other of "):
            _ = StudyResults(folder.path, study).trained


def test_the_evaluated_start_model_is_that_of_the_revision(cache, made, tmp_path):
    """Though the cache has another commit as `main`."""
    study = small_study(model={"start": "some/model", "revision": NEW})
    results = StudyFolder(tmp_path / "results")
    evaluate_study(study, {"start/seed0": Path("some/model")}, DataFolder(made[0]), results)
    protocol = StudyResults(results.path, study).model_evaluations["start/seed0"].protocol
    assert digests.of_model(cache / "snapshots" / NEW) in str(protocol)
