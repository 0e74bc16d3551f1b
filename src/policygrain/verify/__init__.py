"""Verifying answers: ``Verifier`` is the interface; ``numeric`` compares numbers, ``math`` mathematics."""

from .math import MathVerifier
from .numeric import NumericVerifier
from .open import VERIFIERS, open_verifier
from .plain import Options
from .verdict import Outcome, Verifier

__all__ = ["VERIFIERS", "MathVerifier", "NumericVerifier", "Options", "Outcome", "Verifier", "open_verifier"]
