"""`pip install policygrain` in an environment with torch and PyYAML alone: the objective, the methods, no pipeline.

The environment is new and has no pip; what torch and PyYAML need is linked from this one, and the wheel is unpacked.
"""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
MIB = 1024**2
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")


def needed(*names: str) -> set[str]:
    """Distributions and all that they need, on this machine and without extras."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


def run(environment: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    # A test that needs numpy is skipped there, in CI too.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "NO_SKIPS"}
    done = subprocess.run(
        [str(environment / "bin" / arguments[0]), *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
        cwd=environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, built from a copy of what they are made of."""
    folder = tmp_path_factory.mktemp("built")
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SOURCES],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in tracked:
        if (root / name).exists():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / "tree" / name)
    backend = "import setuptools.build_meta as b; print(b.build_{0}('{1}'))"
    found = {}
    for kind in ("wheel", "sdist"):
        code = backend.format(kind, folder)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder / "tree", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found[kind] = folder / done.stdout.split()[-1]
    return found


@pytest.fixture(scope="module")
def light(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment, with pytest and hypothesis for the tests of the objective."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder, symlinks=True, with_pip=False)
    for name in needed("torch", "PyYAML", "pytest", "hypothesis"):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            target = folder / SITE / top
            if source.exists() and not target.exists():
                target.symlink_to(source)
    with zipfile.ZipFile(built["wheel"]) as wheel:
        wheel.extractall(folder / SITE)
    script = folder / "bin" / "policygrain"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom policygrain.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return folder


def test_it_needs_torch_and_pyyaml_alone(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    always = [r for r in map(Requirement, metadata.get_all("Requires-Dist", [])) if "extra" not in str(r.marker)]
    assert sorted(r.name for r in always) == ["PyYAML", "torch"]
    assert str(next(r.specifier for r in always if r.name == "torch")) == ">=2.6"
    assert metadata["Requires-Python"] == ">=3.10"


def test_both_distributions_are_small_and_complete(built: dict[str, Path]) -> None:
    assert built["wheel"].stat().st_size < MIB
    with zipfile.ZipFile(built["wheel"]) as wheel, tarfile.open(built["sdist"]) as source:
        inside = set(wheel.namelist())
        packed = {name.partition("/src/")[2] for name in source.getnames()}
    data = {"policygrain/objective/presets.yaml", "policygrain/analysis/claims.yaml", "policygrain/objective/loss.py"}
    assert data <= inside and data <= packed


def test_nothing_of_the_pipeline_is_there_or_imported(light: Path) -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "from policygrain import method; method('tepo'); import policygrain.objective.loss\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    imported = set(run(light, "python", "-c", code).stdout.split())
    assert {"policygrain", "yaml"} <= imported
    assert not [name for name in imported - {"policygrain", "yaml"} if "cython" not in name]
    missing = (
        "import importlib.util as u; print(any(u.find_spec(n) for n in ('pydantic', 'transformers', 'snakemake')))"
    )
    assert run(light, "python", "-c", missing).stdout == "False\n"


def test_methods_are_listed_and_checked_without_torch(light: Path) -> None:
    code = (
        "import sys\n"
        "from policygrain.objective import comparison_names, method, method_names\n"
        "for name in [*method_names(), *comparison_names()]: method(name).check()\n"
        "print('torch' in sys.modules)"
    )
    assert run(light, "python", "-c", code).stdout == "False\n"


@pytest.mark.release
def test_the_tests_of_the_objective_pass(light: Path, root: Path) -> None:
    """With few examples, since other imports would be seen by the first."""
    arguments = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile", "few", str(root / "tests" / "objective"))
    done = run(light, "python", "-m", "pytest", *arguments)
    assert " passed" in done.stdout and " failed" not in done.stdout


def test_a_command_of_the_pipeline_says_what_to_install(light: Path) -> None:
    assert "tepo" in run(light, "policygrain", "methods").stdout
    assert "pip install './policygrain[study]'" in run(light, "policygrain", "check", code=2).stderr


def test_the_conformance_kit_is_there_as_a_pytest_plugin(light: Path, tmp_path: Path, root: Path) -> None:
    """The example of its page, and a loss that is another one, in an environment with torch, PyYAML and pytest."""
    (example,) = re.findall(
        r"```python\n# test_objective.py\n(.*?)```", (root / "docs/conformance.md").read_text(), re.S
    )
    wrong = example.replace("test_my_loss", "test_wrong").replace('"grpo"', '"dapo"')
    assert wrong.count("test_wrong") == wrong.count('"dapo"') == 1
    (tmp_path / "test_objective.py").write_text(f"{example}\n{wrong}")
    out = tmp_path / "objectives.json"
    arguments = ("-q", "-p", "no:cacheprovider", f"--objectives={out}", str(tmp_path))
    done = run(light, "python", "-m", "pytest", *arguments, code=1)
    assert "test_my_loss: is grpo (cosine 1.0000, norm 1)" in done.stdout and "1 failed, 1 passed" in done.stdout
    assert "it is not dapo: it differs in" in done.stdout
    assert [(row["objective"], bool(row["problems"])) for row in json.loads(out.read_text())] == [
        ("grpo", False),
        ("dapo", True),
    ]


def test_the_plugin_does_not_import_torch(light: Path) -> None:
    """It is imported in every session of pytest beside this package."""
    code = "import sys, policygrain.testing.plugin; print('torch' in sys.modules)"
    assert run(light, "python", "-c", code).stdout == "False\n"
