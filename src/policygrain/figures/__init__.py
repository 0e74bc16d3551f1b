"""Figures and tables, drawn from records alone: nothing here knows the trainer. Each name is a module of this room."""

FIGURES = ("benchmarks", "dynamics", "clip_ratio", "stress")
TABLES = ("results",)
