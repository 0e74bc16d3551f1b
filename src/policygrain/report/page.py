"""Writes the report of a study: one self-contained HTML file."""

from __future__ import annotations

import base64
import re
from importlib import resources
from pathlib import Path
from typing import Any

from ..analysis.abstract import QUESTION, abstract
from ..analysis.claims import decide_study
from ..analysis.contrasts import contrasts, sentences
from ..analysis.controls import controls, controls_warning
from ..errors import UserError
from ..figures import TABLES
from ..figures.catalogue import FIGURES
from ..figures.claim_tables import UNDECIDED
from ..figures.labels import labels
from ..files import atomic_text
from ..results.reader import StudyResults
from ..text import unbroken
from ..views.html import content_security_policy, render
from .facts import cost, protocol, provenance, tracked
from .tables import tables

FIRST, FIRST_OF_OWN = "regimes", "benchmarks"  # the first figure of the report, and that of a study of own methods


def write_report(results: StudyResults, captions: Path, out: Path) -> None:
    """Write the report of a study to ``out``.

    ``captions`` is a folder with a file NAME.rst per figure and table. UserError if a figure or table is missing.
    """
    study, folder, label = results.study, results.folder, labels(results.study)
    found = contrasts(results)
    first = FIRST_OF_OWN if any(c.pair.whole for c in found) else FIRST
    names = sorted(study.figures, key=lambda name: name != first)
    texts = {name: _read(folder.table(name, ".md")) for name in TABLES}
    texts["findings"] = re.sub(r"^\* .*\n", "", texts["findings"], flags=re.M)  # they are in the abstract
    texts["claims"], _, undecided = texts["claims"].partition(f"{UNDECIDED}\n")
    tested = controls(results)
    page = render(
        resources.files(__package__) / "page.html",
        policy=content_security_policy(),
        title=study.title or study.name,
        name=study.name,
        question=QUESTION,
        figures=[
            {
                "name": name,
                "title": FIGURES[name].title,
                **_image(folder.figure(name, ".svg")),
                "caption": _caption(captions, name),
            }
            for name in names
        ],
        abstract=[
            unbroken(text)
            for text in (
                *sentences(results, [c for c in found if c.pair.whole], label),
                *abstract(results, decide_study(results), found, tested, label),
            )
        ],
        tables={name: tables(text) for name, text in texts.items()},
        undecided=tables(undecided),
        captions={name: _caption(captions, name) for name in TABLES},
        warning=controls_warning(tested),
        protocol=protocol(results),
        provenance=provenance(results),
        cost=cost(results),
        tracked=_in_order(tracked(results), {label(arm): arm for arm in results.matrix.arms}),
    )
    atomic_text(out, page)


def _in_order(found: dict[str, Any], arms: dict[str, str]) -> dict[str, Any]:
    """The links to MLflow with the arms in the order of ``arms``, their names in figures."""
    runs = found.get("runs", {})
    return found | {"runs": [(name, runs[arm]) for name, arm in arms.items() if arm in runs]}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error


def _image(path: Path) -> dict[str, str]:
    """An SVG file as a data URL, and its width on the page: a figure of five inches has 44 rem."""
    svg = _read(path)
    points = re.search(r'<svg [^>]*?width="([\d.]+)pt"', svg)
    width = f"{44 / 5 / 72 * float(points[1]):.1f}rem" if points else "44rem"
    return {"image": "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), "width": width}


def _caption(folder: Path, name: str) -> str:
    path = folder / f"{name}.rst"
    return " ".join(path.read_text(encoding="utf-8").split()) if path.exists() else ""
