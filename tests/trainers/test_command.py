"""A script of one's own trains runs: what it reads, what becomes of its log and model, and what is refused."""

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.errors import Stopped, UserError
from policygrain.paths import RunFolder, StudyFolder
from policygrain.results import run_config, run_metrics, run_summary, run_timings
from policygrain.study import Study, parse_study
from policygrain.study.runs import run_matrix
from policygrain.train.stopping import Stop
from policygrain.trainers import command, launch
from policygrain.trainers.check import check_trainers
from policygrain.trainers.command import filled

from ..repository.test_docs import blocks
from ..support.small import SMALL, train_small, write_study
from ..support.snakemake import snakemake

# A script that logs steps 0 to 4, and does what is asked.
SCRIPT = Path(__file__).with_name("script.txt").read_text()
DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
TRAINING = DATA["training"] | {"command": f"{sys.executable} {DATA['training']['command']}"}


def study_of(asked: str = "", training: Mapping[str, Any] = {}, **sections: Any) -> Study:
    """The small study by the script."""
    methods = {"methods": {"mine": {"label": "My loss"}}, "experiments": {"headline": {"methods": ["mine", "grpo"]}}}
    keys = {**TRAINING, "command": f"{TRAINING['command']} {asked}", **training}
    return parse_study({**SMALL, **methods, **sections, "training": keys}, Path("small.yaml"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with the script; programs and logs are looked at without delay."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(command, "WATCH_SECONDS", 0.02)
    return tmp_path


def test_a_script_trains_a_run_that_is_not_started_again(made, folder):
    run = RunFolder(train_small(study_of("waits"), folder / "run", *made))
    assert run_metrics(run) == [
        {"step": n, "total_updates": min(n + 1, 4), "entropy_old": n + 1}
        | ({} if n % 2 else {"validation_accuracy": n / 8})
        for n in range(5)
    ]
    assert len(run_timings(run)) == 5
    summary = run_summary(run)
    assert (summary.final.validation_accuracy, summary.final.tokens) == (0.5, None)
    assert summary.environment.engine == "command"
    assert (run.model / "model.safetensors").read_bytes() == (made[1] / "model.safetensors").read_bytes()
    train_small(study_of("waits"), folder / "run", *made)
    assert (run.out / "calls").read_text() == "mine waits\n"
    (folder / "script.py").write_text(SCRIPT + "# edited")
    train_small(study_of("waits"), folder / "run", *made)
    assert run_config(run).key != summary.key and list(run.path.glob("superseded-*")), "another script is another run"


def test_a_wrong_name_of_a_metric_costs_no_second_training(made, folder, monkeypatch):
    """Nor does a change of another key that the script does not read; without the model, it can be started again."""
    monkeypatch.setattr(command, "WATCH_SECONDS", 60.0)  # the log is read when the script has ended
    run, wrong = RunFolder(folder / "run"), {"metrics": {"validation_accuracy": "acuracy"}}
    with pytest.raises(UserError, match=r"training.metrics.validation_accuracy: .*has no 'acuracy'"):
        train_small(study_of(training=wrong), run.path, *made)
    for study in (study_of(), study_of(extraction="hashes")):
        train_small(study, run.path, *made)
        assert (run.out / "calls").read_text() == "mine\n" and run_summary(run).final.steps == 4
    with pytest.raises(UserError, match=r"has no config.json.*unless you remove (.*)\.$") as refused:
        train_small(study_of("modelless"), run.path, *made)
    Path(str(refused.value).split()[-1].rstrip(".")).unlink()
    with pytest.raises(UserError, match=r"has no config.json"):
        train_small(study_of("modelless"), run.path, *made)
    assert (run.out / "calls").read_text() == "mine modelless\nmine --resume modelless\n"


@pytest.mark.parametrize(("asked", "sections", "message"), DATA["not done"])
def test_what_a_script_did_not_do_is_one_message(asked, sections, message, made, folder):
    with pytest.raises(UserError, match=f"(?s){message}"):
        train_small(study_of(asked, **sections), folder / "run", *made)
    assert not (folder / "run" / "summary.json").exists()


def test_a_script_that_is_stopped_is_told_to_resume(made, folder, monkeypatch):
    """By a signal to the process that watches it, after which a part of a pipe has time to save, and by itself."""
    monkeypatch.setenv("TRAINS", str(os.getpid()))
    for asked in ("slow", "stops"):
        study, run = study_of(f"{asked} | cat"), RunFolder(folder / asked)
        with pytest.raises(Stopped), Stop() as stop:
            train_small(study, run.path, *made, stop=stop)
        train_small(study, run.path, *made)
        assert (run.out / "saved").exists() == (asked == "slow")
        assert (run.out / "calls").read_text() == f"mine {asked}\nmine --resume {asked}\n"
        assert run_summary(run).final.steps == 4


@pytest.mark.parametrize(("changes", "message"), DATA["not read"])
def test_what_the_command_does_not_read_is_refused_before_anything_is_spent(changes, message):
    with pytest.raises(UserError, match=message):
        check_trainers(study_of(**changes))


def test_what_is_varied_reaches_the_command_though_no_study_has_such_a_key():
    keys = "{learning_rate} {beta} {model.start}"
    vary = {"beta": [0.1, 0.5], "learning_rate": [1e-5]}
    study = study_of(keys, experiments={"headline": {"methods": ["mine"], "vary": vary}})
    check_trainers(study)
    for arm, beta in zip(run_matrix(study).arms.values(), ("0.1", "0.5"), strict=True):
        values = command.placeholders(study, arm, 3, "a b", *command.NOWHERE)
        text = filled(str(arm.training.command), values, quoted=True)
        assert text.split()[-3:] == ["1e-05", beta, "tiny"] and "'a b'" in text and " 3 mine" in text


@settings(deadline=None)  # a shell is started
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_value_is_one_word_that_no_shell_runs(value):
    shell = ["bash", "-c", filled("printf '%s' {value}", {"value": value}, quoted=True)]
    assert subprocess.run(shell, capture_output=True, check=True).stdout == value.encode()


@pytest.mark.trl
def test_a_loop_of_ones_own_in_a_whole_study(root, folder):
    """Two methods × three seeds by a loop in torch, to benchmarks, tables and the comparison of its arms."""
    loop = "tests/support/plain_loop.py --model {start} --baseline {method} --train {train} --validation {validation}"
    training = TRAINING | {
        "command": f"{sys.executable} {root}/{loop} --steps {{steps}} --seed {{seed}} --out {{out}}",
        "logs": {"file": "{out}/log.csv", "format": "csv"},
        "metrics": {"validation_accuracy": "validation", "sampled_accuracy": "reward"},
    }
    study = SMALL | {"name": "own-loop", "seeds": [0, 1, 2], "training": training}
    study["methods"] = {"group": {"label": "group baseline"}, "constant": {}}
    study["experiments"] = {"headline": {"methods": ["constant", "group"], "reference": "constant"}}
    results = whole(root, folder, study)
    with (results.path / "tables" / "contrasts.csv").open() as file:
        [row] = csv.DictReader(file)
    assert (row["of"], row["than"], row["auc_n"]) == ("group", "constant", "3")


@pytest.mark.trl
def test_the_page_about_a_script_of_ones_own_is_true(root, folder, monkeypatch):
    """Its script and its study, as printed, with fewer steps and seeds."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = root / "docs" / "your-script.md"
    [script], [text, *_] = blocks(page, "python"), blocks(page, "yaml")
    (folder / "train.py").write_text(script)
    study = yaml.safe_load(text.replace(".venv/bin/python", sys.executable))
    assert study["training"]["command"].split()[1] == "train.py"
    study |= {"seeds": [0, 1], "training": study["training"] | {"steps": 2, "validate_every": 1}}
    study["model"]["warm_start"] = {"steps": 60, "mixed_steps": 0}
    results = whole(root, folder, study)
    assert {run.name for run in (results.path / "runs").iterdir()} == set(study["methods"])


def whole(root: Path, folder: Path, study: dict[str, object]) -> StudyFolder:
    """The results of a study from its file to its report."""
    file = write_study(folder / "study.yaml", study)
    snakemake(root, folder, file, "all")
    results = StudyFolder(folder / "results" / str(study["name"]))
    assert (results.path / "report.html").exists() and (results.path / "tables" / "results.tex").exists()
    return results
