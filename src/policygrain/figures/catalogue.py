"""Draws a figure or writes a table by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, did_you_mean
from ..files import atomic_text
from . import FIGURES, TABLES

if TYPE_CHECKING:
    from ..results.reader import StudyResults


def draw(name: str, results: StudyResults, out: Path | None = None) -> None:
    """Draw figure ``name`` to ``out``.pdf and .png, or write table ``name`` to ``out``.csv and .md.

    By default, ``out`` is its place in the results of the study.
    """
    if name not in (*FIGURES, *TABLES):
        raise UserError(f"there is no figure or table {name!r}.{did_you_mean(name, (*FIGURES, *TABLES))}")
    module = importlib.import_module(f".{name}", __package__)
    if name in TABLES:
        frame, markdown = module.table(results)
        out = out or results.folder.table(name)
        atomic_text(out.with_name(out.name + ".csv"), frame.to_csv(index=False))
        atomic_text(out.with_name(out.name + ".md"), markdown)
        return
    from .style import save

    save(module.draw(results), out or results.folder.figure(name))
