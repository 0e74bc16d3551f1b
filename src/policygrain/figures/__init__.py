"""Figures and tables of a study's results, see `catalogue`."""

from typing import get_args

from ..study.schema import FigureName

FIGURES: tuple[str, ...] = get_args(FigureName)
SUFFIXES = (".pdf", ".svg", ".png")  # the files of a figure: for papers, pages and slides
TABLES = {  # table → the function that makes it
    "findings": "tables.findings",
    "results": "tables.results",
    "ablation": "tables.ablation",
    "claims": "tables.claims",
}
