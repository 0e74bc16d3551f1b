"""The command line: its commands, messages, exit codes, and what it imports."""

import os
import shutil
import subprocess
import sys

import pytest
import typer

from policygrain.cli import main, repeated
from policygrain.commands import app
from policygrain.errors import Stopped, UserError
from policygrain.study import load_study

from ..support.made_up import make_up

STAGES = {"prepare", "start-model", "train", "evaluate", "figure", "report", "track"}
PEOPLE = {"check", "plan", "methods", "data", "evaluate-model", "grade", "claim", "ui"}


@pytest.fixture
def methods_that(monkeypatch):
    """Let `policygrain methods` raise an error; returns the exit code."""

    def raises(error: BaseException) -> int:
        def method_names() -> None:
            raise error

        monkeypatch.setattr("policygrain.commands.study.method_names", method_names)
        return main(["methods"])

    return raises


# ---- help -----------------------------------------------------------------------------------------------------------


def test_the_commands_are_those_of_the_workflow_and_those_for_people(capsys):
    names = set(typer.main.get_command(app).commands)
    assert names == STAGES | PEOPLE
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f" {name} " in text for name in names) and text.index("check") < text.index("prepare")


def test_what_is_no_command_or_option_is_said(capsys):
    assert main(["evalute", "--config", "study.yaml"]) == 2
    assert "No such command 'evalute'" in capsys.readouterr().err
    assert main(["anatomy", "rollouts"]) == 2
    assert "'anatomy' is part of the lab: `pip install ./lab`" in capsys.readouterr().err
    assert main(["plan", "config.yaml", "--devise", "cpu"]) == 2
    assert "--device" in capsys.readouterr().err


def test_setup_names_the_versions_of_python_that_it_needs(root, tmp_path):
    """Before anything is installed, in a folder with a space in its name."""
    home = tmp_path / "a copy"
    (home / "requirements").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements/cpu.lock"):
        shutil.copy(root / name, home / name)
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 1\n")  # what another version answers to the first question
    other.chmod(0o755)
    command = ["make", "setup", f"PYTHON={other}", "FLAVOUR=cpu"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is not Python 3.11 or 3.12; name one that is: make setup PYTHON=" in done.stderr
    assert not (home / ".venv").exists()


def test_several_words_may_follow_an_option():
    spread = repeated(["train", "--seeds", "0", "1", "--arm", "a", "--b", "x", "y", "--margin", "-1"])
    assert spread == ["train", "--seeds", "0", "--seeds", "1", "--arm", "a", "--b", "x", "--b", "y", "--margin", "-1"]


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("seeds: give at least one."), 2, "seeds: give at least one."),
        (Stopped("SIGTERM at step 3."), 75, "SIGTERM at step 3. The same command resumes."),
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
    assert done.returncode == 1 and not done.stderr


# ---- imports --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_that_compute_nothing_start_without_torch(root, in_root, tmp_path):
    """One after another in one process."""
    make_up(load_study("studies/smoke.yaml"), tmp_path, {"tepo": 9})
    study = ["--config", str(tmp_path / "study.yaml"), "--results", str(tmp_path)]
    commands = [["methods"], ["check", study[1]], ["plan", study[1]], ["data", "list"]]
    program = (
        "import sys; from policygrain.cli import main\n"
        f"for words in {[*commands, ['figure', 'benchmarks', *study]]}:\n"
        "    code, heavy = main(words), {'torch', 'transformers', 'vllm', 'mlflow'} & set(sys.modules)\n"
        "    assert not code and not heavy, (words, code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
