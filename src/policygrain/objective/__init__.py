"""The objective: small pure functions over one batch type. Imports nothing else of this package."""

from .declaration import Need, needed_by, needs

__all__ = ["Need", "needed_by", "needs"]
