"""The command line: its table of commands, help, messages and exit codes."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from policygrain import __version__
from policygrain.cli import main
from policygrain.commands import COMMANDS, GROUPS
from policygrain.errors import Stopped, UserError

ROOT = Path(__file__).parents[2]
Raiser = Callable[[BaseException], int]
DATA_ACTIONS = ("list", "fetch", "check")


@pytest.fixture
def methods_that(monkeypatch: pytest.MonkeyPatch) -> Raiser:
    """Let `policygrain methods` raise an error; returns the exit code."""

    def raises(error: BaseException) -> int:
        def methods(_: argparse.Namespace) -> None:
            """Raise the error."""
            raise error

        monkeypatch.setitem(COMMANDS, "methods", COMMANDS["methods"]._replace(run=methods))
        return main(["methods"])

    return raises


# ---- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [*([name] for name in COMMANDS), *(["data", action] for action in DATA_ACTIONS)], ids="-".join
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
    assert "Known: check," in capsys.readouterr().err


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
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_are_one_message(
    methods_that: Raiser, error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert methods_that(error) == code
    assert capsys.readouterr().err == f"policygrain: {message}\n"


@pytest.mark.parametrize("error", [OSError("a library's error"), ValueError("a mistake of ours")])
def test_other_errors_keep_their_traceback(methods_that: Raiser, error: Exception) -> None:
    with pytest.raises(type(error)):
        methods_that(error)


@pytest.mark.parametrize("arguments", [["methods"], ["data", "list"]], ids=["long", "short"])
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    """The reader is gone before the first line, as with `| true`; a short text is written only when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "policygrain.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=ROOT)
    os.close(writer)
    assert done.returncode == 141 and not done.stderr
