"""Lock files match the versions in pyproject.toml, and every figure has a caption."""

import tomllib
from typing import get_args

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from policygrain.figures import TABLES
from policygrain.figures.catalogue import FIGURES
from policygrain.study.schema import FigureName


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_the_locks_match_the_pins(root, flavour):
    """pip, conda and CI install the locks, which are made from the versions in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["study"], *extras["lora"], *extras["dev"], *extras[flavour]]
    lines = (root / "requirements" / f"{flavour}.lock").read_text().splitlines()
    locked = {canonicalize_name(line.split("==")[0]): line.split("==")[1].split()[0] for line in lines if "==" in line}
    for requirement in map(Requirement, wanted):
        found = locked.get(canonicalize_name(requirement.name))
        assert found and requirement.specifier.contains(found), f"run `make lock`: {requirement} but {found}"


def test_conda_installs_the_lock(root):
    wanted = yaml.safe_load((root / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert wanted == (root / "requirements" / "gpu.lock").read_text().splitlines(), "run `make lock`"


def test_every_figure_has_an_entry_and_a_caption(root):
    assert list(FIGURES) == list(get_args(FigureName))
    assert {path.stem for path in (root / "workflow/report").glob("*.rst")} >= {*FIGURES, *TABLES}
