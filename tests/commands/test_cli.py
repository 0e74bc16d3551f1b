"""The command line: its table of commands, help, messages and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policygrain import __version__
from policygrain.cli import main
from policygrain.commands import COMMANDS, GROUPS
from policygrain.errors import Stopped, UserError

ROOT = Path(__file__).parents[2]
Raiser = Callable[[BaseException], int]
DATA_ACTIONS = ("list", "fetch", "check", "select", "overlaps")


@pytest.fixture
def schema_that(monkeypatch: pytest.MonkeyPatch) -> Raiser:
    """Let `policygrain schema` raise an error; returns the exit code."""

    def raises(error: BaseException) -> int:
        def schema(_: argparse.Namespace) -> None:
            """Raise the error."""
            raise error

        monkeypatch.setitem(COMMANDS, "schema", COMMANDS["schema"]._replace(run=schema))
        return main(["schema"])

    return raises


# ---- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [*([name] for name in COMMANDS), *(["data", action] for action in DATA_ACTIONS)],
    ids="-".join,
)
def test_the_help_of_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(" ".join(["usage: policygrain", *words]))
    if len(words) == 1:
        assert COMMANDS[words[0]].help.endswith(".") and COMMANDS[words[0]].help in text


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_first_list_is_for_people_and_every_command_is_in_one_group(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: policygrain")
    assert all(command.help in " ".join(text.split()) for command in COMMANDS.values())
    listed = re.findall(r"^  ([a-z][a-z-]+) ", text, flags=re.M)
    assert sorted(listed) == sorted(COMMANDS)
    stages = list(GROUPS)[-1]
    for_people = re.findall(r"^  ([a-z][a-z-]+) ", text.partition(f"{stages}:")[0], flags=re.M)
    assert len(for_people) <= 19 and not {"prepare", "train", "evaluate", "figure", "track"} & set(for_people)
    assert [text.index(f"\n{group}:") for group in GROUPS] == sorted(text.index(f"\n{group}:") for group in GROUPS)


def test_the_command_line_imports_the_standard_library_alone() -> None:
    """So its help takes no time, and works where only the light installation is."""
    program = (
        "import sys; before = set(sys.modules); import policygrain.cli\n"
        "print(*{n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "policygrain\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"policygrain {__version__}\n"


def test_a_misspelt_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evalute", "--config", "study.yaml"]) == 2
    assert (
        capsys.readouterr().err
        == "policygrain: there is no command 'evalute'. Did you mean 'evaluate' or 'evaluate-model'?\n"
    )
    assert main(["xyz"]) == 2
    assert "Known: anatomy, calibrate, cases, check," in capsys.readouterr().err


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2 and "COMMAND" in capsys.readouterr().err


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("seeds: give at least one."), 2, "seeds: give at least one."),
        (Stopped("SIGTERM at step 3."), 75, "SIGTERM at step 3. The same command resumes."),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to continue."),
        (
            FileNotFoundError(2, "No such file or directory", "runs/x.json"),
            2,
            "runs/x.json: No such file or directory.",
        ),
        (OSError(28, "No space left on device"), 2, "No space left on device."),
        (BrokenPipeError(32, "Broken pipe"), 2, "Broken pipe."),  # of a worker: nobody has closed the output
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_are_one_message(
    schema_that: Raiser,
    error: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert schema_that(error) == code
    assert capsys.readouterr().err == f"policygrain: {message}\n"


@pytest.mark.parametrize("error", [OSError("a library's error"), ValueError("a mistake of ours")])
def test_other_errors_keep_their_traceback(schema_that: Raiser, error: Exception) -> None:
    with pytest.raises(type(error)):
        schema_that(error)


# ---- pipes and Ctrl-C -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"), [(["schema"], 141), (["data", "list"], 141), (["--help"], 0)], ids=["long", "short", "help"]
)
@pytest.mark.parametrize("errors_too", [False, True], ids=["stdout", "both"])
def test_a_closed_pipe_is_no_error(arguments: list[str], code: int, errors_too: bool) -> None:
    """The reader is gone before the first line, as with `| true`; a short text is written only when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "policygrain.cli", *arguments]
    errors = writer if errors_too else subprocess.PIPE
    done = subprocess.run(command, stdout=writer, stderr=errors, text=True, timeout=60, check=False, cwd=ROOT)
    os.close(writer)
    assert done.returncode == code and not done.stderr


PROGRAM = """
import atexit, sys, time
from policygrain import cli
from policygrain.commands import COMMANDS

def wait(what):
    print(what, flush=True)
    time.sleep(60)

def schema(_):
    wait("running")

COMMANDS["schema"] = COMMANDS["schema"]._replace(run=schema)
atexit.register(wait, "closing")
sys.argv = ["policygrain", "schema"]
sys.exit(cli.main())
"""


def interruptible() -> None:
    """Jobs in the background of a shell, as tests may be, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def running(program: str, **options: Any) -> Iterator[Any]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "running\n"
            process.send_signal(signal.SIGINT)
            yield process
        finally:
            process.kill()


def test_one_ctrl_c_is_a_line_and_a_second_ends_the_process_at_once() -> None:
    with running(PROGRAM, preexec_fn=interruptible) as process:
        assert process.stdout.readline() == "closing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == -signal.SIGINT
        assert process.stderr.read() == "policygrain: interrupted; run the same command again to continue.\n"


def test_one_ctrl_c_exits_with_130() -> None:
    with running(PROGRAM.replace('atexit.register(wait, "closing")', ""), preexec_fn=interruptible) as process:
        assert process.wait(timeout=30) == 130


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """As for a job in the background of a shell script, whose Ctrl-C is meant for another process."""
    program = PROGRAM.replace("time.sleep(60)", "time.sleep(1)")
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    with running(ignore + program) as process:
        assert process.stdout.readline() == "closing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
