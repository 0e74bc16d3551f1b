"""Commands that compute nothing start without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from policygrain.study import load_study

from ..support.made_up import make_up

PROGRAM = """
import sys
from policygrain.cli import main
code = main(sys.argv[1:])
heavy = sorted({"torch", "transformers", "vllm", "mlflow"} & set(sys.modules))
sys.exit(f"imported: {heavy}" if heavy else code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A folder with `study`, the records of a finished study."""
    folder = tmp_path_factory.mktemp("start")
    before = os.getcwd()
    os.chdir(root)
    try:
        make_up(load_study(root / "studies" / "smoke.yaml"), folder / "study", {"tepo": 9})
    finally:
        os.chdir(before)
    return folder


STUDY = ("--config", "{folder}/study/study.yaml", "--results", "{folder}/study", "--out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("methods",),
        ("check", "--config", "{folder}/study/study.yaml"),
        ("plan", "{folder}/study/study.yaml"),
        ("data", "list"),
        ("figure", "benchmarks", *STUDY, "{folder}/benchmarks"),
    ],
    ids=lambda arguments: " ".join(word for word in arguments if "/" not in word and word not in STUDY),
)
def test_no_torch(arguments: tuple[str, ...], folder: Path, root: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, *(word.format(folder=folder) for word in arguments)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
