"""A conformance kit: does a loss, a trainer or an endpoint have the objective of a preset? (docs/conformance.md).

It needs torch and PyYAML, and pytest for the plugin. Importing it does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .generated import batches
    from .losses import Comparison, assert_objective, compare
    from .tinker import assert_tinker
    from .verl import assert_verl
    from .weights import Step, assert_step, assert_trl

__all__ = [
    "Comparison",
    "Step",
    "assert_objective",
    "assert_step",
    "assert_tinker",
    "assert_trl",
    "assert_verl",
    "batches",
    "compare",
]
_MODULES = {"batches": "generated", "assert_tinker": "tinker", "assert_verl": "verl"}
_MODULES |= dict.fromkeys(("Comparison", "assert_objective", "compare"), "losses")
_MODULES |= dict.fromkeys(("Step", "assert_step", "assert_trl"), "weights")


def __getattr__(name: str) -> Any:
    """Load torch only when a check is used: pytest imports the plugin of this package in every session."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
