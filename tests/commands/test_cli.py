"""The command line: its table of commands, help, messages, exit codes, and what it imports."""

import argparse
import os
import re
import subprocess
import sys

import pytest

from policygrain.cli import main
from policygrain.commands import COMMANDS, GROUPS
from policygrain.errors import Stopped, UserError
from policygrain.study import load_study

from ..support.made_up import make_up


@pytest.fixture
def methods_that(monkeypatch):
    """Let `policygrain methods` raise an error; returns the exit code."""

    def raises(error: BaseException) -> int:
        def methods(_: argparse.Namespace) -> None:
            """Raise the error."""
            raise error

        monkeypatch.setitem(COMMANDS, "methods", COMMANDS["methods"]._replace(run=methods))
        return main(["methods"])

    return raises


# ---- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS), ["data", "list"]], ids="-".join)
def test_the_help_of_a_command(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert capsys.readouterr().out.startswith(" ".join(["usage: policygrain", *words]))


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_every_command_is_in_one_group_and_those_of_the_workflow_come_last(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command.help in " ".join(text.split()) for command in COMMANDS.values())
    assert sorted(re.findall(r"^  ([a-z][a-z-]+) ", text, flags=re.M)) == sorted(COMMANDS)
    places = [text.index(f"\n{group}:") for group in GROUPS]
    assert places == sorted(places)
    stages = {"prepare", "train", "evaluate", "figure", "track"}
    assert not stages & set(re.findall(r"^  ([a-z][a-z-]+) ", text[: places[-1]], flags=re.M))


def test_a_misspelt_command(capsys):
    assert main(["evalute", "--config", "study.yaml"]) == 2
    assert "no command 'evalute'. Did you mean 'evaluate' or 'evaluate-model'?" in capsys.readouterr().err
    assert main(["xyz"]) == 2
    assert "Known: check, claim," in capsys.readouterr().err


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("seeds: give at least one."), 2, "seeds: give at least one."),
        (Stopped("SIGTERM at step 3."), 75, "SIGTERM at step 3. The same command resumes."),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to continue."),
        (FileNotFoundError(2, "No such file", "runs/x.json"), 2, "runs/x.json: No such file."),
        (OSError(28, "No space left on device"), 2, "No space left on device."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_are_one_message(methods_that, error, code, message, capsys):
    assert methods_that(error) == code
    assert capsys.readouterr().err == f"policygrain: {message}\n"


@pytest.mark.parametrize("error", [OSError("a library's error"), ValueError("a mistake of ours")])
def test_other_errors_keep_their_traceback(methods_that, error):
    with pytest.raises(type(error)):
        methods_that(error)


@pytest.mark.parametrize("arguments", [["methods", "--json"], ["data", "list"]], ids=["long", "short"])
def test_a_closed_pipe_is_no_error(arguments, root):
    """The reader is gone before the first line, as with `| true`; a short text is written only when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "policygrain.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=root)
    os.close(writer)
    assert done.returncode == 141 and not done.stderr


# ---- imports --------------------------------------------------------------------------------------------------------


def test_the_command_line_imports_the_standard_library_alone():
    """So its help takes no time, and works where only the light installation is."""
    program = (
        "import sys; before = set(sys.modules); import policygrain.cli\n"
        "print(*{n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "policygrain\n"


@pytest.mark.slow
def test_commands_that_compute_nothing_start_without_torch(root, in_root, tmp_path):
    """One after another in one process."""
    make_up(load_study("studies/smoke.yaml"), tmp_path, {"tepo": 9})
    study = ["--config", str(tmp_path / "study.yaml"), "--results", str(tmp_path), "--out", str(tmp_path / "x")]
    commands = [["methods"], ["check", *study[:2]], ["plan", study[1]], ["data", "list"]]
    program = (
        "import sys; from policygrain.cli import main\n"
        f"for words in {[*commands, ['figure', 'benchmarks', *study]]}:\n"
        "    code, heavy = main(words), {'torch', 'transformers', 'vllm', 'mlflow'} & set(sys.modules)\n"
        "    assert not code and not heavy, (words, code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
