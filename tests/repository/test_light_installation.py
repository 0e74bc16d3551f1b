"""`pip install policygrain` beside torch and PyYAML alone: the objective and the methods."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

# Of the pipeline. In place of an environment without them, importing them fails.
ABSENT = (
    "pydantic typer transformers tokenizers numpy scipy pandas pyarrow matplotlib mlflow snakemake rich tqdm tabulate "
    "trl accelerate datasets peft vllm"
)
HIDDEN = f"""
import sys

class Hidden:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {ABSENT.split()}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    """What Python prints, with the package in ``folder``."""
    # A test that needs another package is skipped there, in CI too.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "NO_SKIPS"}
    command, variables["PYTHONPATH"] = [sys.executable, *arguments], str(folder)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr + done.stdout


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    """The wheel, built from a copy of what it is made of."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = "import setuptools.build_meta as b; print(b.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=True)
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def light(wheel, tmp_path_factory):
    """The package as it is installed, and a start of Python that hides the packages of the pipeline."""
    folder = tmp_path_factory.mktemp("light")
    zipfile.ZipFile(wheel).extractall(folder)
    (folder / "sitecustomize.py").write_text(HIDDEN)
    return folder


def test_it_needs_torch_and_pyyaml_alone_and_is_small(wheel):
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(files.read(name))
    always = [r for r in map(Requirement, metadata.get_all("Requires-Dist", [])) if "extra" not in str(r.marker)]
    assert sorted(f"{r.name}{r.specifier}" for r in always) == ["PyYAML>=6", "torch>=2.6"]
    assert metadata["Requires-Python"] == ">=3.10" and wheel.stat().st_size < 1024**2


def test_the_objective_imports_nothing_of_the_pipeline_and_methods_are_checked_without_torch(light):
    code = (
        "import sys\n"
        "from policygrain.objective import comparison_names, method, method_names\n"
        "for name in [*method_names(), *comparison_names()]: method(name).check()\n"
        "assert 'torch' not in sys.modules\n"
        "import torch; before = set(sys.modules); import policygrain.objective.loss\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    assert run(light, "-c", code).splitlines()[-1] == "policygrain"


@pytest.mark.parametrize(
    "settings", ["ratio={'name': 'block', 'layout': 'slide'}", "clip={'low': -1.0}", "clip={'low': 'x'}"]
)
def test_a_setting_that_is_no_choice_or_out_of_bounds_is_refused(light, settings):
    code = (
        "from policygrain.errors import UserError\nfrom policygrain.objective import method\n"
        f"method('mpo')\ntry:\n    method('grpo', {settings})\nexcept UserError as error:\n    print(error)"
    )
    assert run(light, "-c", code).startswith("methods.grpo.")


def test_a_command_of_the_pipeline_says_what_to_install(light):
    assert "pip install './policygrain[study]'" in run(light, "-m", "policygrain.cli", "check", code=2)


def test_the_example_of_conformance_runs_and_a_wrong_loss_is_named(light, tmp_path, root):
    page = (root / "docs/conformance.md").read_text()
    (example,) = re.findall(r"```python\n# test_objective.py\n(.*?)```", page, re.S)
    wrong = example.replace("test_my_loss", "test_wrong").replace('"grpo"', '"dapo"')
    (tmp_path / "test_objective.py").write_text(f"{example}\n{wrong}")
    said = run(light, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), code=1)
    assert "1 failed, 1 passed" in said and "it is not dapo: it differs in" in said


@pytest.mark.release
def test_the_tests_of_the_objective_pass(light, root):
    """With few examples, since other imports would be seen by the first."""
    arguments = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile", "few", str(root / "tests" / "objective"))
    assert " passed" in run(light, "-m", "pytest", *arguments)
