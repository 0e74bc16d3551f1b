"""The objective: pure functions on `TokenBatch`. Imports no other subpackage."""

from .declaration import Need, needed_by, needs

__all__ = ["Need", "needed_by", "needs"]
