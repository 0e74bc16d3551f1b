"""Lock files, figures, make targets and published results agree with each other."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import get_args
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_the_locks_match_the_pins(root: Path, flavour: str) -> None:
    """pip, conda and CI install the locks, which are made from the versions in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        Requirement(r)
        for r in [*project["dependencies"], *extras["study"], *extras["lora"], *extras["dev"], *extras[flavour]]
    ]
    lines = (root / "requirements" / f"{flavour}.lock").read_text().splitlines()
    locked = {canonicalize_name(line.split("==")[0]): line.split("==")[1].split()[0] for line in lines if "==" in line}
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        assert name in locked, f"run `make lock`: {name} is missing"
        assert requirement.specifier.contains(locked[name]), f"run `make lock`: {requirement} but {locked[name]}"


def test_conda_installs_the_lock(root: Path) -> None:
    wanted = yaml.safe_load((root / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert wanted == (root / "requirements" / "gpu.lock").read_text().splitlines(), "run `make lock`"


def test_every_figure_has_an_entry_a_caption_and_an_explanation(root: Path) -> None:
    from policygrain.figures import TABLES
    from policygrain.figures.catalogue import FIGURES
    from policygrain.study.schema import FigureName

    assert list(FIGURES) == list(get_args(FigureName))
    for name in (*FIGURES, *TABLES):
        assert (root / "workflow/report" / f"{name}.rst").exists()
    page = (root / "docs/reading-results.md").read_text()
    assert all(f"`{name}`" in page for name in (*FIGURES, *TABLES))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_that_are_named_exist(root: Path, page: str) -> None:
    targets = set(re.findall(r"(?:`|^)make ([\w-]+)", (root / page).read_text(), flags=re.M))
    assert {"all", "test"} <= targets
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"make {target}: {done.stderr}"


def test_the_published_results_are_of_the_published_record(in_root: Path, tmp_path: Path) -> None:
    """After a change of a record (test_records.py): `make pages`."""
    from policygrain.study import load_recorded_study
    from policygrain.study.fingerprint import Fingerprints

    for record, pages in {"laptop": ("findings", "results", "ablation"), "recipes": ("claims",)}.items():
        with ZipFile(in_root / "docs" / "records" / f"{record}.zip") as archive:
            (tmp_path / "study.yaml").write_bytes(archive.read("study.yaml"))
        digest = Fingerprints(load_recorded_study(tmp_path / "study.yaml")).figures()
        for page in pages:
            assert f"digest {digest}." in (in_root / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize(
    ("ratio", "methods"),
    [
        ("token", ("token_clip", "dapo")),
        ("block K=5, uniform, normalised", ("block_clip",)),
        ("sequence", ("sequence_clip", "tepo")),
    ],
)
def test_the_laptop_study_has_the_chosen_ranges(in_root: Path, ratio: str, methods: tuple[str, ...]) -> None:
    """After a run of the study phase-ranges: `policygrain ranges results/phase-ranges --out docs/ranges.json`."""
    from policygrain.objective import method
    from policygrain.study import load_study

    study = load_study("config.yaml")
    found = json.loads((in_root / "docs" / "ranges.json").read_text())
    assert found["extend"] == [] and len(found["chosen"]) == 3
    for name in methods:
        one = method(name, study.methods)
        assert one.ratio.label == ratio
        assert {side: one.clip.settings[side] for side in ("low", "high")} == found["chosen"][ratio], name
