"""Figures and tables of a study's results, see `catalogue`."""

SUFFIXES = (".pdf", ".svg", ".png")  # the files of a figure: for papers, pages and slides
TABLES = ("results", "contrasts", "ablation")
