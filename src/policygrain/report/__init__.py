"""The HTML report of a study, its archive, and the records behind a number of a table."""

from .page import write_report

__all__ = ["write_report"]
