"""The study as one page to read and pass on: question, figures, tables, claims, protocol, provenance."""

from .page import write_report

__all__ = ["write_report"]
