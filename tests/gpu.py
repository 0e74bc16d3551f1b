"""What `make test-gpu` runs after the tests of what computes: small studies and `evaluate-model` on one GPU.

A workflow with vLLM beside the trainer, to its figures; the model that it trained; the same study by TRL. Without a GPU
the engine of transformers rehearses them.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .conftest import ROOT
from .support.small import SMALL, write_study

WITH_VLLM = torch.cuda.is_available() and importlib.util.find_spec("vllm") is not None
ENGINE, COMPUTE = ("vllm", "bfloat16") if WITH_VLLM else ("transformers", "float32")
SAMPLING = ["--size", "8", "--samples", "2", "--temperature", "1", "--max-tokens", "12", "--engine", ENGINE]
PROMPT = ["--grader", "numeric", "--prompt", "{problem}\n", "--no-chat", "--out", "evaluated"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


def run(folder: Path, *command: str) -> None:
    # One GPU for all processes; the jobs of a workflow would else wait for each other.
    environment = {**os.environ, "POLICYGRAIN_GPU": "0", "MLFLOW_TRACKING_URI": "", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = f"{ROOT}/src"
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.mark.parametrize("trainer", ["policygrain", "trl"])
def test_a_small_study_from_its_problems_to_its_figures(trainer, folder):
    if trainer == "trl":
        pytest.importorskip("trl")
    engine = ENGINE if trainer == "policygrain" else "transformers"
    training = SMALL["training"] | {"engine": engine, "compute": COMPUTE, "trainer": trainer}
    evaluation = SMALL["evaluation"] | {"engine": engine}
    changes = {"name": trainer, "training": training, "evaluation": evaluation, "figures": ["benchmarks", "dynamics"]}
    study = write_study(folder / f"{trainer}.yaml", SMALL | changes)
    workflow = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder), "--cores", "1"]
    run(folder, *workflow, "--configfile", str(study), "--", "all")


def test_the_trained_model_is_evaluated_without_a_study(folder):
    model = folder / "results" / "policygrain" / "runs" / "grpo" / "seed0" / "model"
    run(folder, "policygrain.cli", "evaluate-model", str(model), "--benchmarks", "count", *SAMPLING, *PROMPT)
