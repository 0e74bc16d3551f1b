"""Records, figures and tables → one self-contained HTML file."""

from __future__ import annotations

import base64
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from ..errors import UserError
from ..figures import TABLES
from ..figures.records import Records
from ..figures.style import label
from ..files import atomic_text
from .facts import cost, protocol, provenance, tracked

if TYPE_CHECKING:
    from ..study import Study

QUESTION = "At what grain should a policy gradient act on a reasoning model: token, block, prefix or sequence?"
FIRST = "grain"  # the figure that answers it, before the others


def write_report(study: Study, results: Path, captions: Path, out: Path) -> None:
    """Write the report of ``study``, whose records, figures and tables are in ``results``, to ``out``.

    ``captions`` is a folder of NAME.rst. UserError names what has to be made first.
    """
    records = Records(study, results)
    names = sorted(study.figures, key=lambda name: name != FIRST)
    markdown = MarkdownIt("commonmark").enable("table")
    tables = {name: Markup(markdown.render(_read(results / "tables" / f"{name}.md"))) for name in TABLES}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    page = environment.from_string(template).render(
        title=study.title or study.name,
        name=study.name,
        question=QUESTION,
        figures=[
            {"name": name, "image": _image(results / "figures" / f"{name}.png"), "caption": _caption(captions, name)}
            for name in names
        ],
        tables=tables,
        captions={name: _caption(captions, name) for name in TABLES},
        methods=[label(arm) for arm in records.arms("headline")],
        runs=len(records.matrix.runs),
        seeds=len(study.seeds),
        protocol=protocol(records),
        provenance=provenance(records),
        cost=cost(records),
        tracked=_in_order(tracked(results), list(records.matrix.arms)),
    )
    atomic_text(out, page)


def _in_order(found: dict[str, Any], arms: list[str]) -> dict[str, Any]:
    """Links to an arm's runs in the order of the study, by the names that figures have."""
    runs = found.get("runs", {})
    return found | {"runs": [(label(arm), runs[arm]) for arm in arms if arm in runs]}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error


def _image(path: Path) -> str:
    """A data URL."""
    try:
        return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error


def _caption(folder: Path, name: str) -> str:
    path = folder / f"{name}.rst"
    return " ".join(path.read_text(encoding="utf-8").split()) if path.exists() else ""
