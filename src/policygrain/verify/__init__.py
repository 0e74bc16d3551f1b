"""Verifying answers: ``Verifier`` is the interface, ``numeric`` the exact match that the miniature needs."""

from .numeric import NumericVerifier
from .verdict import Outcome, Verifier

__all__ = ["NumericVerifier", "Outcome", "Verifier"]
