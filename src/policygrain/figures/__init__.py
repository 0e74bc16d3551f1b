"""Figures and tables, drawn from a study's results. Each name is a module of this room."""

from typing import get_args

from ..study.schema import FigureName

FIGURES: tuple[str, ...] = get_args(FigureName)
TABLES = ("results", "ablation", "claims")
