"""The command line: its commands, messages, exit codes, what it imports; stages called by hand."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from policygrain.cli import main, repeated
from policygrain.commands import app
from policygrain.errors import Stopped, UserError
from policygrain.files import read_json
from policygrain.paths import StudyFolder
from policygrain.study import load_study

from ..support.made_up import make_up
from ..support.small import SMALL, write_study
from . import CASES

STAGES = {"prepare", "start-model", "train", "evaluate", "figure", "report", "track"}
PEOPLE = {"check", "plan", "methods", "data", "evaluate-model", "grade", "claim", "ui"}


def test_the_commands_are_those_of_the_workflow_and_those_for_people(capsys):
    names = set(typer.main.get_command(app).commands)
    assert names == STAGES | PEOPLE
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f" {name} " in text for name in names) and text.index("check") < text.index("prepare")


def test_a_command_that_left_is_said_to_be_in_the_lab(capsys):
    assert main(["anatomy", "rollouts"]) == 2
    assert "'anatomy' is part of the lab: `pip install ./lab`" in capsys.readouterr().err


def test_setup_names_the_versions_of_python_that_it_needs(root, tmp_path):
    """Before anything is installed, in a folder with a space in its name."""
    home = tmp_path / "a copy"
    (home / "requirements").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements/cpu.lock"):
        shutil.copy(root / name, home / name)
    command = ["make", "setup", "PYTHON=false", "FLAVOUR=cpu"]  # as another version answers to the first question
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is not Python 3.11 or 3.12; name one that is: make setup PYTHON=" in done.stderr
    assert not (home / ".venv").exists()


def test_several_words_may_follow_an_option():
    spread = repeated(["train", "--seeds", "0", "1", "--arm", "a", "--b", "x", "y", "--margin", "-1"])
    assert spread == ["train", "--seeds", "0", "--seeds", "1", "--arm", "a", "--b", "x", "--b", "y", "--margin", "-1"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("seeds: give at least one."), 2, "seeds: give at least one."),
        (Stopped("SIGTERM at step 3."), 75, "SIGTERM at step 3. The same command resumes."),
        (FileNotFoundError(2, "No such file", "runs/x.json"), 2, "runs/x.json: No such file."),
        (OSError(28, "No space left on device"), 2, "No space left on device."),
        (OSError("a library's error"), None, ""),
        (ValueError("a mistake of ours"), None, ""),
    ],
)
def test_errors_of_users_are_one_message_and_others_keep_their_traceback(error, code, message, monkeypatch, capsys):
    def method_names() -> None:
        raise error

    monkeypatch.setattr("policygrain.commands.study.method_names", method_names)
    with nullcontext() if code else pytest.raises(type(error)):
        assert main(["methods"]) == code
        assert capsys.readouterr().err == f"policygrain: {message}\n"


@pytest.mark.parametrize("arguments", [["methods", "--json"], ["data", "list"]], ids=["long", "short"])
def test_a_closed_pipe_is_no_error(arguments, root):
    """The reader is gone before the first line, as with `| true`; a short text is written only when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "policygrain.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False, cwd=root)
    os.close(writer)
    assert done.returncode == 1 and not done.stderr


@pytest.mark.slow
def test_commands_that_compute_nothing_start_without_torch(root, in_root, tmp_path):
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


UNTRAINED = {**SMALL["model"], "warm_start": {"steps": 0, "mixed_steps": 0}}


def configured(folder: Path, **changes: Any) -> list[str]:
    return ["--config", str(write_study(folder / "study.yaml", {**SMALL, **changes}))]


@pytest.mark.parametrize(("command", "says"), CASES["stages"])
def test_what_cannot_be_done_is_said_before_anything_is_computed(command, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, *configured(tmp_path), "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error and not (tmp_path / "run").exists()


def test_a_start_model_is_made_again_when_training_problems_change(tmp_path):
    start, made = tmp_path / "start" / "seed0", []
    for seed in (1, 1, 2):
        config = configured(tmp_path, model=UNTRAINED, data={**SMALL["data"], "seed": seed})
        options = [*config, "--results", str(tmp_path)]
        assert main(["prepare", *options]) == 0 == main(["start-model", *options])
        record = read_json(start / "start.json")
        assert read_json(start.with_suffix(".json")) == record
        made.append((record["settings"]["training_data"], (start / "model.safetensors").stat().st_mtime_ns))
    first, again, changed = made
    assert again == first and changed[0] != first[0] and changed[1] != first[1]


def test_the_stages_of_a_study_by_hand(tmp_path, monkeypatch):
    """In results/NAME, where the next stage finds what the one before has made; a second time nothing changes."""
    monkeypatch.chdir(tmp_path)
    training = {**SMALL["training"], "steps": 1, "validate_every": 1}
    config = configured(tmp_path, model=UNTRAINED, training=training)
    results = StudyFolder(Path("results") / SMALL["name"])
    for command in (["prepare"], ["start-model"], ["train", "--arm", "grpo"], ["evaluate", "--arms", "start", "grpo"]):
        assert main([*command, *config]) == 0
    run = results.run("grpo", 0)
    assert (results.start(0).path / "model.safetensors").exists() and results.evaluation("grpo/seed0").record.exists()
    before, timings = run.metrics.read_bytes(), run.timings.read_bytes()
    run.summary.unlink()  # as Snakemake does before it starts a job
    assert main(["train", *config]) == 0 and main(["evaluate", *config]) == 0
    assert run.summary.read_bytes() == run.ended.read_bytes()
    assert (run.metrics.read_bytes(), run.timings.read_bytes()) == (before, timings), "no step was made again"
    run.metrics.unlink()
    assert main(["train", *config]) == 2, "a run without its metrics is no finished run"
