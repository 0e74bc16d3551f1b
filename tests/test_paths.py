"""Folders of results: paths, files that say that a job has ended, and locks of those that run."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from policygrain.errors import UserError
from policygrain.files import read_json
from policygrain.job_state import begin, wait_for_jobs, write_done
from policygrain.paths import Folder, Inside, RunFolder, StudyFolder, study_of

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
    own = {run.lock, run.superseded("KEY"), run.data.path, run.start.path}
    named = {path for name, path in paths_of(run) if name.startswith("RunFolder.")}
    inside = {path for path in named if any(path.is_relative_to(p) and path != p for p in run.products)}
    assert named - own - inside == set(run.products) and run.products[-1] == run.config


def test_the_study_of_a_path(tmp_path):
    folder = StudyFolder(tmp_path / "smoke")
    assert study_of(folder.run("grpo", 0).evaluation.record) is None
    folder.path.mkdir()
    folder.study.touch()
    for path in (folder.run("grpo", 0).path, folder.evaluation("start/seed0").record, folder.table("results", ".csv")):
        assert study_of(path) == folder


OLD, NEW = "0" * 16, "f" * 16
START = "import sys, time\nfrom pathlib import Path\nfrom policygrain.paths import StudyFolder\n"
START += "from policygrain.job_state import *\n{call}\nprint('locked', flush=True)\nsys.stdin.read()"
WORKFLOW, JOB = "lock_workflow(StudyFolder(Path(sys.argv[1])))", "start_job(Path(sys.argv[1]) / 'done/train/a/0.json')"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "study.yaml").touch()
    return StudyFolder(tmp_path)


@contextmanager
def process(call: str, folder: StudyFolder) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock, if it gets it."""
    command = [sys.executable, "-c", START.format(call=call), str(folder.path)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as started:  # type: ignore[call-overload]
        yield started
        started.kill()


def test_of_two_workflows_the_second_is_refused_until_the_first_is_killed(folder):
    with process(WORKFLOW, folder) as first:
        assert first.stdout.readline() == "locked\n"
        with process(WORKFLOW, folder) as second:
            assert second.stdout.readline() == ""
            assert f"{folder.path}: this study is being run already, by process {first.pid} " in second.stderr.read()
        first.kill()
        first.wait()
        with process(WORKFLOW, folder) as second:
            assert second.stdout.readline() == "locked\n"


def test_jobs_of_a_killed_workflow_are_waited_for(folder):
    wait_for_jobs(folder, 0)
    with process(JOB, folder) as one, process(JOB, folder) as other:
        assert one.stdout.readline() == other.stdout.readline() == "locked\n"
        one.kill()
        one.wait()
        with pytest.raises(UserError, match="jobs of an earlier call, which was killed, are still running"):
            wait_for_jobs(folder, 0.3)
        other.kill()
        wait_for_jobs(folder, 5)


@pytest.mark.parametrize(
    ("name", "results", "there", "removed"),
    [
        # Its file of other settings, and no other.
        (f"0-{NEW}", "a", {f"0-{NEW}": "a", f"0-{OLD}": "a", f"1-{OLD}": "b", f"0+1-{OLD[1:]}": "x"}, {f"0-{OLD}"}),
        # Seeds 0 and 1 were trained by one process; now seed 1 is trained alone, from other settings.
        (f"1-{NEW}", "b", {f"0+1-{OLD}": "ab", f"2-{OLD}": "c", "notes": ""}, {f"0+1-{OLD}"}),
        # Signs of patterns are taken as they are.
        (f"a+b-{NEW}", "", {f"a+b-{OLD}": "a", f"aab-{OLD}": "b"}, {f"a+b-{OLD}"}),
    ],
)
def test_a_job_that_starts_removes_outdated_files(name, results, there, removed, tmp_path):
    """Each letter is a result; a file that cannot be read names none."""
    for other, made in there.items():
        write_done(tmp_path / f"{other}.json", dict.fromkeys(made, "digest"))
        assert read_json(tmp_path / f"{other}.json")["results"] == dict.fromkeys(made, "digest")
    (tmp_path / f"9-{OLD}.json").write_text("{")
    begin(tmp_path / f"{name}.json", results)
    assert {path.stem for path in tmp_path.iterdir()} == {*there, f"9-{OLD}"} - removed
