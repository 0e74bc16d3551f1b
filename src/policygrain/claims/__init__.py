"""The papers' claims as data, each with the test that decides it."""

from .decide import Verdict, decide, holm
from .ledger import Claim, Comparison, Judged, judge, ledger

__all__ = ["Claim", "Comparison", "Judged", "Verdict", "decide", "holm", "judge", "ledger"]
