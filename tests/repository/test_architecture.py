"""The import graph is the one that docs/architecture.md draws, and modules stay short."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ..conftest import ROOT

PACKAGE = ROOT / "src" / "policygrain"
PAGE = ROOT / "docs" / "architecture.md"
LONGEST = 410  # lines of a module
LONGER = {"study.schema": "every key of a study file, declared in one place; no logic"}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}  # module → file, without `policygrain.`; the package itself is ""


@dataclass(frozen=True)
class Import:
    """``source`` imports ``target``; ``lazy``: inside a function."""

    source: str
    target: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{FILES[self.source].relative_to(ROOT)}:{self.line}: imports {self.target or 'the package'}"


def imports_of(module: str, text: str | None = None) -> list[Import]:
    """Imports of this package's modules; those for type checkers alone are left out."""
    text = FILES[module].read_text() if text is None else text
    return [Import(module, *found) for found in _walk(ast.parse(text), module, lazy=False)]


def _walk(node: ast.AST, module: str, lazy: bool) -> Iterator[tuple[str, int, bool]]:
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for child in node.orelse:
            yield from _walk(child, module, lazy)
        return
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names if alias.name.split(".")[0] == "policygrain"]
        yield from ((name.removeprefix("policygrain").removeprefix("."), node.lineno, lazy) for name in names)
    if isinstance(node, ast.ImportFrom) and (base := _base(node, module)) is not None:
        for alias in node.names:
            submodule = f"{base}.{alias.name}".removeprefix(".")
            yield submodule if submodule in FILES else base, node.lineno, lazy
    inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, inside)


def _base(node: ast.ImportFrom, module: str) -> str | None:
    """The module that a `from` import names; None outside this package."""
    if node.level == 0:
        found = re.fullmatch(r"policygrain(?:\.(.+))?", node.module or "")
        return (found[1] or "") if found else None
    parts = module.split(".") if module else []
    if FILES[module].name != "__init__.py":
        parts = parts[:-1]
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def rooms() -> list[str]:
    """The rooms in the order of the page's table; in a cell, in the order in which they are named."""
    text = PAGE.read_text().split("## Modules")[1].split("## ")[0]
    return [
        room
        for cell in re.findall(r"^\| (`[^|]+/`[^|]*)\|", text, flags=re.M)
        for room in re.findall(r"`(\w+)/`", cell)
    ]


def room_of(module: str) -> str:
    """The folder that a module is in; for a module beside the rooms, its name."""
    return module.split(".", maxsplit=1)[0]


IMPORTS = [found for module in FILES for found in imports_of(module)]
MODULES_BESIDE_ROOMS = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}


def test_every_kind_of_import_is_found() -> None:
    text = """
from typing import TYPE_CHECKING
import os, policygrain.files
from .. import digests
from ..results.layout import StudyFolder
from . import loss
from policygrain import clock as c
if TYPE_CHECKING:
    from ..commands import study
else:
    from ..text import columns
class A:
    def f(self):
        from ..train import loop
        return lambda: __import__
"""
    found = [(i.target, i.lazy) for i in imports_of("objective.loss", text)]
    at_once = ["files", "digests", "results.layout", "objective.loss", "clock", "text"]
    assert found == [*((name, False) for name in at_once), ("train.loop", True)]
    assert [
        i.target for i in imports_of("objective", "from .loss import x\nfrom . import batch\nfrom .. import y")
    ] == ["objective.loss", "objective.batch", ""]


def test_every_room_and_module_is_on_the_page() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert len(rooms()) == len(set(rooms())) and set(rooms()) == folders
    beside = PAGE.read_text().split("## Decisions")[0].rpartition("\n\n")[0].rpartition("\n\n")[2]
    assert set(re.findall(r"`(\w+)`", beside)) == MODULES_BESIDE_ROOMS


def test_no_room_imports_one_that_comes_after_it() -> None:
    """So there is no circle between rooms either."""
    order = {room: place for place, room in enumerate(rooms())}
    wrong = [
        str(i)
        for i in IMPORTS
        if room_of(i.source) in order and order.get(room_of(i.target), -1) > order[room_of(i.source)]
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_beside_the_rooms_import_no_room() -> None:
    """All rooms use them. The command line, which starts a command, is the exception."""
    wrong = [
        str(i) for i in IMPORTS if room_of(i.source) in MODULES_BESIDE_ROOMS - {"cli"} and room_of(i.target) in rooms()
    ]
    assert not wrong, "\n".join(wrong)
    assert {room_of(i.target) for i in IMPORTS if i.source == "cli"} & set(rooms()) == {"commands"}


def test_nothing_imports_the_command_line() -> None:
    assert not [
        str(i)
        for i in IMPORTS
        if room_of(i.target) == "cli"
        or (room_of(i.target) == "commands" and room_of(i.source) not in ("commands", "cli"))
    ]


def test_the_objective_imports_what_reads_settings_alone() -> None:
    allowed = {"objective", "settings", "errors", "merging"}
    assert not [str(i) for i in IMPORTS if room_of(i.source) == "objective" and room_of(i.target) not in allowed]


@pytest.mark.parametrize("room", ["results", "analysis", "figures", "report"])
def test_readers_of_results_import_neither_trainer_nor_models(room: str) -> None:
    """Records are read, and figures drawn, where no model could run."""
    makers = {"model", "train", "engines", "instruments"}
    assert {room, *makers} <= set(rooms())
    assert not [str(i) for i in IMPORTS if room_of(i.source) == room and room_of(i.target) in makers]


def test_figures_are_drawn_without_models() -> None:
    """A module may use another whose imports are heavy: loading transformers takes longer than drawing a figure."""
    modules = [f"policygrain.{name}" for name in FILES if name.startswith("figures.")]
    code = f"import sys, {', '.join(modules)}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "set()\n"


def test_no_circle_between_modules() -> None:
    """Imports inside functions included: a circle is no better for being hidden."""
    graph = {module: {i.target for i in IMPORTS if i.source == module} - {module} for module in FILES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other: {' ← '.join(error.args[1])}")


def test_modules_are_short() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in FILES.items()}
    too_long = {module: length for module, length in lengths.items() if length > LONGEST}
    assert set(too_long) <= set(LONGER), f"divide by meaning: {too_long}; allowed: {LONGER}"
