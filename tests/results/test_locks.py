"""One workflow runs a study at a time; locks of processes that were killed are gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.results.layout import StudyFolder
from policygrain.results.locks import wait_for_jobs

START = "import sys, time\nfrom pathlib import Path\nfrom policygrain.results.layout import StudyFolder\n"
START += "from policygrain.results.locks import *\n{call}\nprint('locked', flush=True)\nsys.stdin.read()"
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
