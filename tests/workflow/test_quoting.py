"""Names with spaces, quotes and dollars reach commands as they are, and no shell runs what is in them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ..support.snakemake import call, copy_checkout, planned, snakemake

pytestmark = pytest.mark.slow

ODD = "a b/c'd$e"
INJECTION = "$(touch x)"
ONE_RUN = {"seeds": [0], "experiments": {"headline": {"methods": ["tepo"]}}, "controls": None, "figures": ["dynamics"]}
OF_START_MODEL = ("train", "estimators", "rounds")


def write_study(folder: Path, root: Path, **changes: object) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({"base": str(root / "studies" / "smoke.yaml"), "name": "odd", **changes}))
    return path


def commands(text: str) -> dict[str, list[str]]:
    """Subcommand → words as a shell would split them, of the commands that Snakemake prints."""
    lines = re.findall(r"^Shell command: (exec .*-m policygrain\.cli .*)$", text, flags=re.M)
    split = [shlex.split(line) for line in lines]
    return {words[words.index("policygrain.cli") + 1]: words for words in split}


def test_values_of_a_study_are_words_of_the_command_line(root: Path, tmp_path: Path) -> None:
    study = write_study(tmp_path, root, model={"start": INJECTION})
    done = snakemake(root, tmp_path, study, "--dry-run", "--printshellcmds", "all")
    found = commands(done.stdout + done.stderr)
    commanded = {"prepare", "train", "estimators", "rounds", "evaluate", "figure", "track", "report"}
    assert commanded == set(found)
    assert not (tmp_path / "x").exists()


def test_no_shell_runs_what_a_study_says(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / INJECTION
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):  # what the first job looks for; a model is more
        (folder / name).write_text("{}")
    study = write_study(tmp_path, root, model={"start": INJECTION}, **ONE_RUN)
    done = call(root, tmp_path, study, "--keep-going", "--until", *OF_START_MODEL, "--", "all", HF_HUB_OFFLINE="1")
    said = done.stdout + done.stderr
    assert done.returncode != 0 and f"policygrain: model '{INJECTION}' cannot be loaded" in said, said[-3000:]
    logs = tmp_path / "results" / "odd" / "logs"
    assert {path.name for path in logs.iterdir()} == {"prepare", *OF_START_MODEL}
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("x"))


@pytest.mark.parametrize("name", [INJECTION, "../up", "a b", ""])
def test_names_that_are_no_words_are_refused(name: str, root: Path, tmp_path: Path) -> None:
    done = call(root, tmp_path, write_study(tmp_path, root, name=name), "--dry-run", "all")
    assert done.returncode != 0 and "name: " in done.stdout + done.stderr
    assert not list(tmp_path.rglob("x"))


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout, with its environment, in a folder with an odd name."""
    checkout = tmp_path_factory.mktemp("odd") / ODD / "policygrain"
    copy_checkout(root, checkout)
    (checkout / ".venv").symlink_to(Path(sys.prefix))
    return checkout


def test_a_study_runs_in_a_folder_with_an_odd_name(checkout: Path, root: Path, tmp_path: Path) -> None:
    """Every rule; the initial model is then loaded from such a folder."""
    study = {
        **ONE_RUN,
        "training": {"steps": 2},
        "estimators": {"methods": ["token"], "reference": "token", "updates": [1], "batches": 3, "true_prompts": 9},
        "rounds": {"methods": ["token"], "reference": "token", "updates": [1]},
        "evaluation": {"engine": "transformers", "sampling": {"n": 1, "max_tokens": 8}},
        "figures": ["dynamics"],
    }
    write_study(checkout, root, **study)
    command = [str(checkout / ".venv" / "bin" / "python"), "-m", "snakemake", "--cores", "2"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "MLFLOW_TRACKING_URI": ""}

    done = subprocess.run(
        [*command, "--configfile", "study.yaml", "--", "all"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    results = checkout / "results" / "odd"
    assert (results / "report.html").exists() and (results / "mlflow.json").exists()
    assert planned(checkout, checkout, "study.yaml", "all") == {}
