"""What belongs to a run, and the lock of a study."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policygrain.paths import Folder, Inside, RunFolder, StudyFolder


def test_products_are_all_of_a_run_but_its_lock():
    """What a run of other settings must not find in its folder; `config` is last, as it says whose the others are."""
    run = RunFolder(Path("x"))
    places = [getattr(run, name) for name, member in vars(RunFolder).items() if isinstance(member, Inside)]
    named = {place.path if isinstance(place, Folder) else place for place in places}
    assert named - {run.lock} == set(run.products) and run.products[-1] == run.config


START = """
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
            said = second.stderr.read()
            assert f"{folder.path}: this study is being run already" in said and f"(process {first.pid} on " in said
        first.kill()
        first.wait()
        with process(folder) as second:
            assert second.stdout.readline() == "locked\n"
