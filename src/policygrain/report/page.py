"""Writes the report of a study: one self-contained HTML file."""

from __future__ import annotations

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from ..analysis.abstract import QUESTION, abstract
from ..analysis.claims import decide_study
from ..analysis.controls import controls, controls_warning
from ..analysis.findings import answer, findings
from ..analysis.own import own_differences, own_text
from ..errors import UserError
from ..figures import TABLES
from ..figures.claims import UNDECIDED
from ..figures.style import label
from ..files import atomic_text
from ..results.reader import StudyResults
from ..views.html import content_security_policy, render
from .facts import cost, protocol, provenance, tracked
from .tables import tables

FIRST, FIRST_OF_OWN = "grain", "benchmarks"  # the first figure of the report, and that of a study of own methods


def write_report(results: StudyResults, captions: Path, out: Path) -> None:
    """Write the report of a study to ``out``.

    ``captions`` is a folder with a file NAME.rst per figure and table. UserError if a figure or table is missing.
    """
    study, folder = results.study, results.folder
    own = own_differences(results)
    names = sorted(study.figures, key=lambda name: name != (FIRST_OF_OWN if own else FIRST))
    texts = {name: _read(folder.table(name, ".md")) for name in TABLES}
    texts["claims"], _, undecided = texts["claims"].partition(f"{UNDECIDED}\n")
    found, tested = findings(results), controls(results)
    page = render(
        resources.files(__package__) / "page.html",
        policy=content_security_policy(),
        title=study.title or study.name,
        name=study.name,
        question=QUESTION,
        figures=[
            {"name": name, "image": _image(folder.figure(name, ".svg")), "caption": _caption(captions, name)}
            for name in names
        ],
        abstract=[
            *(own_text(difference, label) for difference in own),
            *abstract(results, decide_study(results), found, tested, label),
        ],
        tables={name: tables(text) for name, text in texts.items()},
        undecided=tables(undecided),
        captions={name: _caption(captions, name) for name in TABLES},
        answers=[answer(result, label) for result in found],
        warning=controls_warning(tested),
        protocol=protocol(results),
        provenance=provenance(results),
        cost=cost(results),
        tracked=_in_order(tracked(results), list(results.matrix.arms)),
    )
    atomic_text(out, page)


def _in_order(found: dict[str, Any], arms: list[str]) -> dict[str, Any]:
    """The links to MLflow with the arms in the order of the study, under their names in figures."""
    runs = found.get("runs", {})
    return found | {"runs": [(label(arm), runs[arm]) for arm in arms if arm in runs]}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error


def _image(path: Path) -> str:
    """The image as a data URL."""
    try:
        return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error


def _caption(folder: Path, name: str) -> str:
    path = folder / f"{name}.rst"
    return " ".join(path.read_text(encoding="utf-8").split()) if path.exists() else ""
