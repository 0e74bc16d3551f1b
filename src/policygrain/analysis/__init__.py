"""Statistics over records: intervals, comparisons of models and studies, the claims and what decides them."""

from .statistics import Difference, Estimate, accuracy, difference

__all__ = ["Difference", "Estimate", "accuracy", "difference"]
