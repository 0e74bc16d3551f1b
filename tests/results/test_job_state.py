"""Files that say that a job has ended, and locks of those that run: of processes that were killed they are gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.files import read_json
from policygrain.results.job_state import begin, wait_for_jobs, write_done
from policygrain.results.layout import StudyFolder

OLD, NEW = "0" * 16, "f" * 16
START = "import sys, time\nfrom pathlib import Path\nfrom policygrain.results.layout import StudyFolder\n"
START += "from policygrain.results.job_state import *\n{call}\nprint('locked', flush=True)\nsys.stdin.read()"
WORKFLOW, JOB = "lock_workflow(StudyFolder(Path(sys.argv[1])))", "start_job(Path(sys.argv[1]) / 'done/train/a/0.json')"


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
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


def test_of_two_workflows_the_second_is_refused_until_the_first_is_killed(folder: StudyFolder) -> None:
    with process(WORKFLOW, folder) as first:
        assert first.stdout.readline() == "locked\n"
        with process(WORKFLOW, folder) as second:
            assert second.stdout.readline() == ""
            message = second.stderr.read()
            assert f"UserError: {folder.path}: this study is being run already, by process {first.pid} on " in message
        first.send_signal(signal.SIGKILL)
        first.wait()
        with process(WORKFLOW, folder) as second:
            assert second.stdout.readline() == "locked\n"


def test_jobs_of_a_killed_workflow_are_waited_for(folder: StudyFolder) -> None:
    wait_for_jobs(folder, 0)
    with process(JOB, folder) as one, process(JOB, folder) as other:
        assert one.stdout.readline() == other.stdout.readline() == "locked\n"
        one.kill()
        one.wait()
        with pytest.raises(UserError, match="jobs of an earlier call, which was killed, are still running"):
            wait_for_jobs(folder, 0.3)
        other.kill()
        wait_for_jobs(folder, 5)


def make(folder: Path, name: str, *results: str) -> Path:
    path = folder / f"{name}.json"
    write_done(path, dict.fromkeys(results, "digest"))
    return path


def test_a_file_has_what_the_job_made(tmp_path: Path) -> None:
    path = make(tmp_path / "train" / "grpo", f"0-{NEW}", "grpo/seed0")
    assert read_json(path)["results"] == {"grpo/seed0": "digest"}


def test_a_job_removes_its_file_of_other_settings_and_no_other(tmp_path: Path) -> None:
    own, old = make(tmp_path, f"0-{NEW}", "grpo/seed0"), make(tmp_path, f"0-{OLD}", "grpo/seed0")
    others = [make(tmp_path, f"1-{OLD}", "grpo/seed1"), make(tmp_path, f"0+1-{OLD[1:]}", "x"), make(tmp_path, "notes")]
    begin(own, ["grpo/seed0"])
    assert own.exists() and not old.exists() and all(path.exists() for path in others)


def test_a_job_removes_files_of_jobs_that_were_divided_differently(tmp_path: Path) -> None:
    """Seeds 0 and 1 were trained by one process; now seed 1 is trained alone, from other settings."""
    both = make(tmp_path, f"0+1-{OLD}", "grpo/seed0", "grpo/seed1")
    other = make(tmp_path, f"2-{OLD}", "grpo/seed2")
    begin(tmp_path / f"1-{NEW}.json", ["grpo/seed1"])
    assert not both.exists() and other.exists()


def test_names_with_signs_of_patterns_are_taken_as_they_are(tmp_path: Path) -> None:
    old, other = make(tmp_path, f"a+b-{OLD}", "a"), make(tmp_path, f"aab-{OLD}", "b")
    begin(tmp_path / f"a+b-{NEW}.json", [])
    assert not old.exists() and other.exists()


def test_a_file_that_cannot_be_read_names_no_results(tmp_path: Path) -> None:
    broken = tmp_path / f"1-{OLD}.json"
    broken.write_text("{")
    begin(tmp_path / f"0-{NEW}.json", ["grpo/seed1"])
    assert broken.exists()
