"""Promises that the repository makes of itself."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_the_locks_hold_the_pins(root: Path, flavour: str) -> None:
    """pip, conda and CI install the locks; the locks agree with the one place that decides versions."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(r) for r in [*project["dependencies"], *extras["dev"], *extras[flavour]]]
    lines = (root / "requirements" / f"{flavour}.lock").read_text().splitlines()
    locked = {canonicalize_name(line.split("==")[0]): line.split("==")[1].split()[0] for line in lines if "==" in line}
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        assert name in locked, f"run `make lock`: {name} is missing"
        assert requirement.specifier.contains(locked[name]), f"run `make lock`: {requirement} but {locked[name]}"


def test_conda_installs_the_lock(root: Path) -> None:
    wanted = yaml.safe_load((root / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert wanted == (root / "requirements" / "gpu.lock").read_text().splitlines(), "run `make lock`"


def test_the_objective_imports_nothing_of_ours_and_figures_no_trainer(root: Path) -> None:
    package = root / "src" / "policygrain"
    for path in (package / "objective").glob("*.py"):
        assert not re.search(r"from \.\.", path.read_text()), path
    for path in [*(package / "figures").glob("*.py"), *(package / "track").glob("*.py")]:
        assert not re.search(r"from \.\.(train|rollout|model|stages)", path.read_text()), path
    for path in (package / "train").glob("*.py"):
        assert not re.search(r"from \.\.(figures|track|evaluate)", path.read_text()), path


def test_every_figure_has_its_module_caption_and_place_in_the_readme(root: Path) -> None:
    from policygrain.figures import FIGURES, TABLES

    for name in (*FIGURES, *TABLES):
        assert (root / "src/policygrain/figures" / f"{name}.py").exists()
        assert (root / "workflow/report" / f"{name}.rst").exists()
    readme = (root / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in FIGURES)


def test_make_targets_of_the_readme_exist(root: Path) -> None:
    readme = (root / "README.md").read_text()
    targets = set(re.findall(r"\bmake (\w+)", readme))
    assert {"all", "test", "ui"} <= targets
    for target in targets - {"it"}:
        done = subprocess.run(["make", "--dry-run", target], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"make {target}: {done.stderr}"


def test_the_published_results_are_of_the_present_study(in_root: Path) -> None:
    """After a change of config.yaml: `make all publish`."""
    from policygrain.figures import TABLES
    from policygrain.study import load_study
    from policygrain.study.runs import digest

    for table in TABLES:
        assert f"digest {digest(load_study('config.yaml'))}." in (in_root / "docs" / f"{table}.md").read_text()


def test_the_laptop_regime_is_the_calibrated_one(in_root: Path) -> None:
    from policygrain.methods import method
    from policygrain.study import load_study

    study = load_study("config.yaml")
    found = json.loads((in_root / "docs" / "calibration.json").read_text())
    assert study.training.learning_rate == found["learning_rate"]
    for name, band in {"tepo": "sequence", "prefix_is": "prefix", "mpo": "block", "mpo_joint": "block_joint"}.items():
        settings = method(name, study.methods).clip.settings
        rounded = {side: float(f"{value:.2g}") for side, value in found["bands"][band].items()}
        assert {side: settings[side] for side in ("low", "high")} == rounded, name


def test_what_is_said_of_benchmarks_is_what_they_measured(root: Path) -> None:
    folder = root / "benchmarks"
    text = " ".join((folder / "README.md").read_text().split())
    training, graded, blocks = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("training_step", "grading", "log_probs")
    )
    natural, fixed = (training["scenarios"][name]["ratio_of_seconds_per_step"] for name in ("natural", "fixed"))
    rates = sorted(turn["policygrain"]["answers_per_s"] for turn in graded["ordinary"]["rounds"])
    ahead = statistics.median(turn["ratio"] for turn in graded["ordinary"]["rounds"])
    both = blocks["results"][0]["blocks"]
    for said in (
        f"{natural['median']:.2f} ({natural['min']:.2f} to {natural['max']:.2f} over five rounds)",
        f"{fixed['median']:.2f} ({fixed['min']:.2f} to {fixed['max']:.2f})",
        f"{statistics.median(rates):,.0f} ordinary answers a second",
        f"({rates[0]:,.0f} to {rates[-1]:,.0f} over five rounds), {ahead:.1f} times a serial loop",
        f"{graded['hostile']['policygrain']['answers_per_s']:.0f}, {graded['hostile']['ratio']:.1f} times the loop",
        f"{both['speed_over_plain']['median']:.2f} of the speed",
        f"{both['memory_over_plain']:.3f} |",
    ):
        assert said in text, said


def test_what_is_said_of_planning_is_what_was_measured(root: Path) -> None:
    text, found = (root / "docs/scaling.md").read_text(), json.loads((root / "benchmarks/dry_run.json").read_text())
    few, many = found["few jobs"], found["many jobs"]
    assert f"| jobs | {few['jobs']} | {many['jobs']:,} |" in text
    assert f"| {few['seconds']} s | {many['seconds']} s | 20 s |" in text
    assert f"| {few['peak_mb']} MB | {many['peak_mb']} MB | 1,000 MB" in text
