"""Imports follow the order of docs/architecture.md, the repository stays small, and locks match the pins."""

import ast
import graphlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from policygrain.figures import TABLES
from policygrain.figures.catalogue import FIGURES
from policygrain.study.schema import FigureName

from ..conftest import ROOT

PACKAGE = ROOT / "src" / "policygrain"
LONGEST = 410  # lines of a module
LONGER = {"study.schema"}  # every key of a study file; no logic
HELPERS = {"clock", "digests", "errors", "files", "hub", "merging", "provenance", "text"}
# Each may import those before it: folders, and the modules beside them that read and write results.
ORDER = ["objective", "integrations", "study", "paths", "records", "results", "grading"]
ORDER += ["data", "analysis", "model", "train", "trainers", "evaluate", "figures", "tracking", "commands", "cli"]
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}  # module → file, without `policygrain.`; the package itself is ""


def walk(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """Imports, those inside functions included; those for type checkers alone are left out."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.ImportFrom):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from walk(child)


def targets(module: str) -> set[str]:
    """The modules of this package that a module imports; within the package, imports are relative."""
    parts = module.split(".") if FILES[module].name != "__init__.py" else [*filter(None, module.split(".")), ""]
    found = set()
    for node in walk(ast.parse(FILES[module].read_text())):
        if node.level:
            base = ".".join([*parts[: len(parts) - node.level], *([node.module] if node.module else [])])
            submodules = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= {name if name in FILES else base for name in submodules}
    return found - {module}


def place(module: str) -> str:
    """The folder that a module is in; for a module beside the folders, its name."""
    return module.split(".", maxsplit=1)[0]


IMPORTS = {module: targets(module) for module in FILES}


def imported_by(folder: str) -> set[str]:
    return {place(target) for module in FILES if place(module) == folder for target in IMPORTS[module]}


def test_every_folder_has_a_place_and_imports_no_later_one():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert {place(module) for module in FILES} == HELPERS | {*ORDER, ""}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(re.findall(r"`(\w+)/`", page))
    order = {name: number for number, name in enumerate(ORDER)} | dict.fromkeys(HELPERS | {""}, -1)
    wrong = [
        (name, target)
        for name in FILES
        if name
        for target in IMPORTS[name]
        if order[place(target)] > order[place(name)]
    ]
    assert not wrong


def test_the_objective_imports_what_reads_settings_alone():
    assert imported_by("objective") <= {"objective", "errors", "merging"}


@pytest.mark.parametrize("folder", ["analysis", "figures", "tracking"])
def test_readers_of_results_import_neither_trainer_nor_models(folder):
    """Records are read, and figures drawn, where no model could run."""
    assert not imported_by(folder) & {"model", "train", "trainers"}


def test_nothing_imports_the_lab():
    """It depends on this package, and never the other way round."""
    importing = re.compile(r"^\s*(?:from|import) policygrain_lab", re.M)
    assert not [name for name, path in FILES.items() if importing.search(path.read_text())]


def test_no_circle_between_modules():
    """Imports inside functions included: a circle is no better for being hidden."""
    graphlib.TopologicalSorter(IMPORTS).prepare()


def test_modules_are_short():
    lengths = {module: len(path.read_text().splitlines()) for module, path in FILES.items()}
    too_long = {module: length for module, length in lengths.items() if length > LONGEST}
    assert set(too_long) <= LONGER, f"divide by meaning: {too_long}"


def files(folder: str, pattern: str) -> list[Path]:
    """Files below a folder of the repository, without records and caches."""
    return [path for path in (ROOT / folder).rglob(pattern) if not {"records", "__pycache__"} & {*path.parts}]


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


LIMITS: dict[str, tuple[int, Callable[[], int]]] = {
    "lines of src": (15_500, lambda: lines(files("src", "*.py"))),
    "files of src": (130, lambda: len(files("src", "*.py"))),
    "lines of the workflow": (250, lambda: lines([ROOT / "Snakefile", *files("workflow", "*.smk")])),
    "folders of the package": (12, lambda: len(files("src/policygrain", "*/__init__.py"))),
    "lines of lab": (5_500, lambda: lines([*files("lab/src", "*.py"), *files("lab/research", "*.py")])),
    "lines of the lab's tests": (3_000, lambda: lines(files("lab/tests", "*.py"))),
    "lines of tests": (11_500, lambda: lines(files("tests", "*.py"))),
    "pages of docs": (25, lambda: len(files("docs", "*.md"))),
    "words of docs": (30_000, lambda: sum(len(path.read_text().split()) for path in files("docs", "*.md"))),
    "studies": (10, lambda: len(files("studies", "*.yaml"))),
    "lines of README": (90, lambda: lines([ROOT / "README.md"])),
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_kept(what):
    limit, measured = LIMITS[what]
    assert measured() <= limit, what


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_the_locks_match_the_pins(root, flavour):
    """pip, conda and CI install the locks, which are made from the versions in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [pin for of in ("study", "slurm", "lora", "dev", flavour) for pin in extras[of]]
    lines = (root / "requirements" / f"{flavour}.lock").read_text().splitlines()
    locked = {canonicalize_name(line.split("==")[0]): line.split("==")[1].split()[0] for line in lines if "==" in line}
    for requirement in map(Requirement, wanted):
        found = locked.get(canonicalize_name(requirement.name))
        assert found and requirement.specifier.contains(found), f"run `make lock`: {requirement} but {found}"


def test_conda_installs_the_lock(root):
    wanted = yaml.safe_load((root / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert wanted == (root / "requirements" / "gpu.lock").read_text().splitlines(), "run `make lock`"


def test_every_figure_has_an_entry_and_a_caption(root):
    assert {*FIGURES} == {*get_args(FigureName)}
    assert {path.stem for path in (root / "workflow/report").glob("*.rst")} >= {*FIGURES, *TABLES}
