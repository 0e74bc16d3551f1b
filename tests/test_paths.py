"""Folders of results: their paths, and the lock of a study."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policygrain.paths import Folder, Inside, RunFolder, StudyFolder

ARGUMENTS: dict[str, Any] = {"arm": "grpo", "seed": 3, "model": "grpo/seed3", "rule": "train", "suffix": ".csv"}


def paths_of(folder: Any, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    """(name, path) of every path that a folder names, those of folders inside it too."""
    for name, member in inspect.getmembers_static(type(folder)):
        if name.startswith("_") or name in skip:
            continue
        found = getattr(folder, name, None)
        if inspect.isfunction(member):
            parameters = [p for p in inspect.signature(member).parameters if p != "self"]
            found = found(*(ARGUMENTS.get(p, p.upper()) for p in parameters))  # type: ignore[misc]
        if isinstance(member, property | Inside) or inspect.isfunction(member):
            path = found.path if isinstance(found, Folder) else found
            if isinstance(path, Path):
                yield f"{type(folder).__name__}.{name}", path
            if isinstance(found, Folder):
                yield from paths_of(found)


def test_no_two_paths_are_equal():
    """But for the evaluation of a run, which a study and the run both name."""
    folder = StudyFolder(Path("results/laptop"))
    names: dict[Path, list[str]] = {}
    for name, path in paths_of(folder, skip=("evaluation",)):
        assert path.is_relative_to(folder.path), name
        names.setdefault(path, []).append(name)
    assert len(names) > 30 and {path: found for path, found in names.items() if len(found) > 1} == {}
    assert folder.evaluation("grpo/seed3") == folder.run("grpo", 3).evaluation
    assert folder.evaluation("start/seed3").path == folder.start(3).path / "evaluation"


def test_products_are_all_of_a_run_but_what_is_the_folder_s_own():
    """What a run of other settings must not find in its folder; `config` is last, as it says whose the others are."""
    run = RunFolder(Path("x"))
    own = {run.lock, run.superseded("KEY")}
    named = {path for name, path in paths_of(run) if name.startswith("RunFolder.")}
    inside = {path for path in named if any(path.is_relative_to(p) and path != p for p in run.products)}
    assert named - own - inside == set(run.products) and run.products[-1] == run.config


START = """
import sys
from pathlib import Path
from policygrain.commands.workflow import lock
from policygrain.paths import StudyFolder
lock(StudyFolder(Path(sys.argv[1])))
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(folder: StudyFolder) -> Iterator[subprocess.Popen[str]]:
    """A process that locks a study, if it can."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", START, str(folder.path)], text=True, **pipes) as started:
        yield started
        started.kill()


def test_of_two_workflows_the_second_is_refused_until_the_first_is_killed(tmp_path):
    folder = StudyFolder(tmp_path / "results")
    with process(folder) as first:
        assert first.stdout.readline() == "locked\n"
        with process(folder) as second:
            assert second.stdout.readline() == ""
            assert f"{folder.path}: this study is being run already, by process {first.pid} " in second.stderr.read()
        first.kill()
        first.wait()
        with process(folder) as second:
            assert second.stdout.readline() == "locked\n"
