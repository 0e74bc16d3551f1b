"""Statistics over records: intervals, comparisons of models and studies, and verdicts on claims."""

from .statistics import Difference, Estimate, accuracy, difference

__all__ = ["Difference", "Estimate", "accuracy", "difference"]
