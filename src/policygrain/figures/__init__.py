"""Figures and tables, drawn from records alone: nothing here knows the trainer."""
