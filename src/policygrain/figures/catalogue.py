"""Drawing a figure or table by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, did_you_mean
from ..files import atomic_text
from . import FIGURES, TABLES

if TYPE_CHECKING:
    from ..study import Study


def draw(name: str, study: Study, results: Path, out: Path) -> None:
    """Draw figure ``name`` to ``out``.pdf and .png, or write table ``name`` to ``out``.csv and .md."""
    from .records import Records

    if name not in (*FIGURES, *TABLES):
        raise UserError(f"there is no figure or table {name!r}.{did_you_mean(name, (*FIGURES, *TABLES))}")
    module = importlib.import_module(f".{name}", __package__)
    records = Records(study, results)
    if name in TABLES:
        frame, markdown = module.table(records)
        atomic_text(out.with_name(out.name + ".csv"), frame.to_csv(index=False))
        atomic_text(out.with_name(out.name + ".md"), markdown)
        return
    from .style import save

    save(module.draw(records), out)
