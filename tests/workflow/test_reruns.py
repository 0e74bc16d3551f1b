"""What runs again after a change: decided by names, so the finished study here is files without content or metadata.

What a study names reaches commands as it is, and no shell runs it; for odd folders see test_pipeline.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
import yaml

from policygrain.errors import UserError
from policygrain.merging import merge
from policygrain.study import parse_study

from ..commands.test_jobs import DRAWN, EVERY_MODEL, FINISHED
from ..support.snakemake import call, jobs, outputs, planned, snakemake

pytestmark = pytest.mark.slow

OWN = {
    "data": {"train": ["own.jsonl"], "train_size": 100},
    "evaluation": {"benchmarks": [{"name": "own", "source": "test.jsonl"}]},
}


INJECTION = "$(touch x)"


def write_study(folder: Path, root: Path, **changes: object) -> Path:
    """The smoke study with changes, key by key."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(merge(FINISHED | {"base": str(root / "tests/support/every_stage.yaml")}, changes)))
    return path


def finish(folder: Path, root: Path, study: Path) -> None:
    """Make the files that the jobs of a study declare; nothing reads what is in them."""
    for path in outputs(root, folder, study):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert (folder / "results" / "smoke" / "report.html").exists()
    shutil.rmtree(folder / ".snakemake")


@pytest.fixture(scope="module")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    finish(folder, root, write_study(folder, root))
    return folder


def test_a_change_schedules_what_depends_on_it(finished: Path, root: Path) -> None:
    """Snakemake starts the jobs without a marker; tests/commands/test_jobs.py has which those are for every change."""
    study = write_study(finished, root, methods={"grpo": {"clip": {"low": 0.1}}})
    assert planned(root, finished, study, "all") == {"train": 1, "evaluate": 1, **DRAWN}
    shutil.rmtree(finished / ".snakemake")


def test_files_that_are_gone_are_made_again_and_nothing_else(finished: Path, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    study, results = write_study(folder, root), folder / "results" / "smoke"
    shutil.rmtree(results / "figures")
    assert planned(root, folder, study, "figures") == {"figure": DRAWN["figure"]}
    assert planned(root, folder, study, "all") == {"figure": DRAWN["figure"], "report_page": 1, "track": 1}
    # Problems are written again only if a job needs them; jobs that read them then find their results up to date.
    shutil.rmtree(results / "data")
    assert planned(root, folder, study, "figures") == {"figure": DRAWN["figure"]}
    study = write_study(folder, root, methods={"grpo": {"clip": {"low": 0.1}}})
    assert planned(root, folder, study, "all") == {"prepare": 1, "start_model": 2, **EVERY_MODEL}


def test_a_finished_job_that_snakemake_takes_for_incomplete_hides_no_other(
    finished: Path, root: Path, tmp_path: Path
) -> None:
    """As a Snakemake that is killed leaves it when its jobs then end by themselves."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    study, results = write_study(folder, root), folder / "results" / "smoke"
    for outdated in ("done/figure", "done/report", "done/track"):
        shutil.rmtree(results / outdated)
    (trained,) = (results / "done" / "train" / "grpo").iterdir()
    mark = urlsafe_b64encode(str(trained.relative_to(folder)).encode()).decode()
    (folder / ".snakemake" / "incomplete").mkdir(parents=True)
    (folder / ".snakemake" / "incomplete" / mark).write_text('{"external_jobid": null}')
    assert planned(root, folder, study, "all") == DRAWN


def test_a_workflow_that_leaves_out_what_all_promises_ends_with_an_error(root: Path, tmp_path: Path) -> None:
    study = write_study(tmp_path, root)
    snakemake(root, tmp_path, study, "--until", "prepare", "--", "all")
    done = call(root, tmp_path, study, "--forcerun", "prepare", "--", "all")
    assert done.returncode != 0 and jobs(done) == {"prepare": 1}
    assert "results/smoke: the study is not finished: " in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def own(root: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A finished study whose problems are JSON Lines files, with its prepared problems: (folder, study file)."""
    for name in ("own.jsonl", "test.jsonl"):
        rows = [{"id": f"{name}-{i}", "problem": f"{name}: {i} + 1", "answer": str(i + 1)} for i in range(120)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).write_text("{}")
    study = write_study(tmp_path, root, **OWN, model={"start": "model"})
    snakemake(root, tmp_path, study, "--until", "prepare", "--", "all")
    finish(tmp_path, root, study)
    return tmp_path, study


def test_other_weights_in_the_folder_of_the_start_model_train_again(root: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (start / name).write_text("{}")
    study = write_study(tmp_path, root, model={"start": str(start)})
    finish(tmp_path, root, study)
    assert planned(root, tmp_path, study, "all") == {}
    (start / "model.safetensors").write_text("other weights")
    assert planned(root, tmp_path, study, "all") == EVERY_MODEL


def test_an_edited_problem_file_schedules_what_is_made_from_it(own: tuple[Path, Path], root: Path) -> None:
    folder, study = own
    assert planned(root, folder, study, "all") == {}
    (folder / "test.jsonl").open("a").write('{"id": "more", "problem": "1 + 1", "answer": "2"}\n')
    assert planned(root, folder, study, "all") == {"prepare": 1, "evaluate": 1, **DRAWN}
    (folder / "own.jsonl").open("a").write('{"id": "more", "problem": "2 + 1", "answer": "3"}\n')
    assert planned(root, folder, study, "all") == {"prepare": 1, **EVERY_MODEL}


def test_prepared_problems_stand_for_files_that_are_gone(own: tuple[Path, Path], root: Path) -> None:
    folder, study = own
    for name in ("own.jsonl", "test.jsonl"):
        (folder / name).unlink()
    assert planned(root, folder, study, "figures") == {} and planned(root, folder, study, "all") == {}
    shutil.rmtree(folder / "results")
    done = call(root, folder, study, "all")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "policygrain: data.train[0]: " in said and "own.jsonl: no such dataset file" in said
    assert "Traceback" not in said
    logs = {path.name for path in (folder / "results" / "smoke" / "logs").iterdir()}
    assert logs == {"prepare"}, "nothing else was started"


@pytest.mark.parametrize("option", ["--cores", "--jobs", "--local-cores"])
def test_no_cores_are_refused(option: str, root: Path, tmp_path: Path) -> None:
    cores = [option, "0"] if option == "--cores" else [option, "0", "--cores", "1"]
    done = call(root, tmp_path, write_study(tmp_path, root), *cores, "--dry-run", "all")
    assert done.returncode != 0
    assert f"policygrain: {option} 0: give at least 1" in done.stdout + done.stderr


@pytest.fixture
def injected(root: Path, tmp_path: Path) -> Path:
    """A study of one run, whose initial model has a name that a shell would run."""
    folder = tmp_path / INJECTION
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):  # what the first job looks for; a model is more
        (folder / name).write_text("{}")
    content = {"base": str(root / "tests/support/every_stage.yaml"), "name": "smoke", "model": {"start": INJECTION}}
    content |= {"seeds": [0], "experiments": {"headline": {"methods": ["tepo"]}}}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content | {"figures": ["dynamics"]}))
    return path


def test_values_of_a_study_are_words_of_the_command_line(injected: Path, root: Path) -> None:
    done = snakemake(root, injected.parent, injected, "--dry-run", "--printshellcmds", "all")
    lines = re.findall(r"^Shell command: exec .*-m policygrain\.cli (.*)$", done.stdout + done.stderr, flags=re.M)
    commanded = {"prepare", "train", "evaluate", "figure", "track", "report"}
    assert commanded == {shlex.split(line)[0] for line in lines}
    assert not list(injected.parent.rglob("x"))


def test_no_shell_runs_what_a_study_says(injected: Path, root: Path) -> None:
    options = ("--keep-going", "--until", "train", "--", "all")
    done = call(root, injected.parent, injected, *options, HF_HUB_OFFLINE="1")
    said = done.stdout + done.stderr
    assert done.returncode != 0 and f"policygrain: model '{INJECTION}' cannot be loaded" in said, said[-3000:]
    logs = injected.parent / "results" / "smoke" / "logs"
    assert {path.name for path in logs.iterdir()} == {"prepare", "train"}
    assert "Traceback" not in said
    assert not list(injected.parent.rglob("x"))


@pytest.mark.parametrize("name", [INJECTION, "../up", "a b", ""])
def test_names_that_are_no_words_are_refused(name: str, in_root: Path) -> None:
    """As the Snakefile reads a study; its error ends the call, as in the next test."""
    with pytest.raises(UserError, match="name: "):
        parse_study(FINISHED | {"name": name}, Path("study.yaml"))


def test_a_misspelt_key_ends_in_one_message(root: Path, tmp_path: Path) -> None:
    done = call(root, tmp_path, write_study(tmp_path, root, training={"stepz": 3}), "all")
    assert done.returncode != 0
    assert "training.stepz: unknown key. Did you mean 'steps'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.release
def test_workflows_that_are_disturbed_end_with_the_same_records(root: Path) -> None:
    """`workflow_kills.py` does more of them."""
    kinds = ("session", "snakemake", "terminate", "interrupt", "stopped", "second", "damaged")
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    command = [sys.executable, "-m", "tests.workflow_kills", "--kills", "8", "--seed", "0", *chosen]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": the same\n") >= 2
