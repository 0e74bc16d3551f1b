"""Figures and tables of a study's results. Each name is the name of a module in this package."""

from typing import get_args

from ..study.schema import FigureName

FIGURES: tuple[str, ...] = get_args(FigureName)
SUFFIXES = (".pdf", ".svg", ".png")  # the files of a figure: for papers, pages and slides
TABLES = ("findings", "results", "ablation", "claims")
