"""What of a method a trainer has to provide, and what it would leave out: checked before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from ..objective import Method, Need, method
from ..objective.penalty import Kl

EXPORTED = "POLICYGRAIN_EXPORTED"  # names the folder of an exported run, in the environment of the other trainer
METHODS_FILE = "methods.yaml"  # in that folder: the method that the run trains with


class UnsupportedOption(ValueError):
    """An option of the trainer, or a part of the method, that would give another objective than the method's."""


# What a function of a method can need, in words. A trainer's integration says which of these it does not give.
NEEDS: dict[Need, str] = {
    "step_log_probs": "statistics of the whole step",
    "reference": "the start policy's log-probabilities",
    "entropy_gradient": "an entropy with gradient",
    "mtp_heads": "multi-token prediction heads",
    "groups": "the prompt of each response",
    "segments": "the segment of each token",
}


def lacking(found: Method, trainer: str, without: Iterable[Need]) -> list[str]:
    """What the method needs and the trainer does not give to a loss, a sentence each."""
    return [
        f"it needs {NEEDS[need]}, which {trainer} does not give to a loss." for need in without if need in found.needs
    ]


def chosen(objective: str | Method) -> Method:
    """The method, by its name or itself; custom functions are imported and tried. UserError if it does not work."""
    if not isinstance(objective, str | Method):
        raise UnsupportedOption(
            f"objective: expected the name of a preset or a Method, got {type(objective).__name__}; "
            'method("tepo", clip={"high": 0.3}) makes a Method.'
        )
    found = method(objective) if isinstance(objective, str) else objective
    found.check()
    return found


def refuse(found: Method, problems: Iterable[str]) -> None:
    """UnsupportedOption with all problems, if there are any."""
    if listed := list(problems):
        raise UnsupportedOption(f"{found.name}: " + " ".join(listed))


def warn_sampler(found: Method, applied: Iterable[str] = ()) -> None:
    """Say once which of the method's sampler settings the trainer does not apply; ``applied``: those that it does."""
    own, defaults = found.sampler.data(), type(found.sampler)().data()
    left = [key for key in own if own[key] != defaults[key] and key not in applied]
    if left:
        warnings.warn(
            f"{found.name}: the trainer samples, so these settings of the method's sampler have no effect: "
            f"{', '.join(f'{key}: {own[key]}' for key in left)}.",
            stacklevel=3,
        )


def reads_entropies(found: Method) -> bool:
    """Whether the method's loss has a mask by entropies that are measured where there are some."""
    return any(
        isinstance(part, Kl) and part.mask != "all" and part.entropy_signal != "covariance" for part in found.penalties
    )
