"""PolicyGrain: at what grain should a policy gradient act on a reasoning model?

>>> from policygrain import TokenBatch, method
>>> out = method("tepo").loss(TokenBatch(log_probs, old_log_probs, advantages, mask))  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from .objective import Method, method

if TYPE_CHECKING:
    from .objective.batch import StepTotals, TokenBatch

__version__ = "0.1.0"
__all__ = ["Method", "StepTotals", "TokenBatch", "__version__", "method"]


def __getattr__(name: str) -> Any:
    """Load torch only when the objective is used, because figures and the command line do not need it."""
    if name in ("StepTotals", "TokenBatch"):
        from .objective import batch

        return getattr(batch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
