"""What a function of the objective reads beyond the log-probabilities, advantages and mask of its micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

Need = Literal["step_log_probs", "entropy_gradient", "reference", "mtp_heads", "groups", "segments"]
# What a user's own function can ask for. How many prediction heads there are is a parameter of the block ratio.
DECLARABLE = ("step_log_probs", "entropy_gradient", "reference", "groups", "segments")

Function = TypeVar("Function", bound=Callable[..., Any])


def needs(*names: Need) -> Callable[[Function], Function]:
    """Declare what a function needs; the trainer provides nothing that no function of a method has declared.

    * ``step_log_probs``: ``batch.whole`` holds the tensors of the whole optimizer step under the current policy;
    * ``entropy_gradient``: ``batch.entropy`` carries gradient;
    * ``reference``: ``batch.ref_log_probs``, log-probabilities under the frozen start policy;
    * ``groups``: ``batch.groups``, which prompt each response belongs to, and ``batch.group_totals``, all responses of
      the step by group;
    * ``segments``: ``batch.segments``, which segment (sentence, step) each token belongs to.

    >>> @needs("reference")
    ... def far_from_start(batch):
    ...     return (batch.log_probs - batch.ref_log_probs).abs()
    """
    for name in names:
        if name not in DECLARABLE:
            raise ValueError(f"@needs({name!r}): a function can need {', '.join(DECLARABLE)}.")

    def declare(function: Function) -> Function:
        function.__dict__["needs"] = needed_by(function) | frozenset(names)
        return function

    return declare


def needed_by(function: Callable[..., Any]) -> frozenset[Need]:
    """What ``function`` has declared."""
    declared: frozenset[Need] = getattr(function, "needs", frozenset())
    return declared
