"""Verifiers by name."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError, did_you_mean
from .math import MathVerifier
from .numeric import NumericVerifier
from .verdict import Verifier

VERIFIERS: dict[str, Callable[[], Verifier]] = {"numeric": NumericVerifier, "math": MathVerifier}


def open_verifier(name: str) -> Verifier:
    """The verifier called ``name``, to be used in a `with` or closed. Processes start when there is work for them."""
    if name not in VERIFIERS:
        raise UserError(f"verifier: there is no {name!r}.{did_you_mean(name, VERIFIERS)}")
    return VERIFIERS[name]()
