"""What a study names reaches commands as it is, and no shell runs it; for odd folders see test_pipeline.py."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from ..support.snakemake import call, snakemake

pytestmark = pytest.mark.slow

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
