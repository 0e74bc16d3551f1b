"""Parts of a method that a trainer cannot provide or would ignore, checked before training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..merging import Loader
from ..objective import Method, Need, method
from ..objective.terms import Kl

EXPORTED = "POLICYGRAIN_EXPORTED"  # names the folder of an exported run, in the environment of the other trainer
METHODS_FILE = "methods.yaml"  # in that folder: the method that the run trains with


class UnsupportedOption(ValueError):
    """An option of the trainer, or a part of the method, with which the objective would differ from the method's."""


# Each integration lists the needs of a method that its trainer does not provide.
NEEDS: dict[Need, str] = {
    "step_log_probs": "statistics of the whole step",
    "reference": "the initial policy's log-probabilities",
    "entropy_gradient": "an entropy with gradient",
    "mtp_heads": "multi-token prediction heads",
    "groups": "the prompt of each response",
    "staleness": "the age of each response, in versions of the policy",
}
VERL_PAIRED = "policygrain.integrations.verl_paired"  # its agent loop and replay buffer sample as the loop does
VERL_LACKS: tuple[Need, ...] = ("reference", "entropy_gradient", "mtp_heads", "groups", "staleness")


def chosen(objective: str | Method) -> Method:
    """The Method, given itself or by its name, checked. UserError if a custom function fails."""
    resolved = objective if isinstance(objective, Method) else method(objective)
    resolved.check()
    return resolved


def refuse(
    objective: Method, trainer: str, lacks: Iterable[Need], wrong: Iterable[str] = (), **longest: int | None
) -> None:
    """UnsupportedOption if the method needs what the trainer ``lacks``; ``wrong``: sentences on what else is wrong.

    ``longest``: the trainer's option for the longest possible response, which some methods divide by.
    """
    needed = [need for need in lacks if need in objective.needs]
    problems = [f"it needs {NEEDS[need]}, which {trainer} does not give to a loss." for need in needed]
    problems += wrong
    if objective.aggregation.name == "seq_mean_token_sum_norm" and None in longest.values():
        problems += [f"its aggregation divides by the longest possible response; set {', '.join(longest)}."]
    if problems:
        raise UnsupportedOption(f"{objective.name}: " + " ".join(problems))


def warn_sampler(objective: Method, applied: Iterable[str] = ()) -> None:
    """Warn of the method's sampler settings that the trainer does not apply; ``applied``: those that it does."""
    values, defaults = asdict(objective.sampler), asdict(type(objective.sampler)())
    if objective.anchor == "loglinear":  # whose loss computes these weights
        applied = [*applied, *(key for key in values if key.startswith(("correction_", "rejection_")))]
    ignored = [key for key in values if values[key] != defaults.get(key) and key not in applied]
    if ignored:
        warnings.warn(
            f"{objective.name}: the trainer samples, so these settings of the method's sampler have no effect: "
            f"{', '.join(f'{key}: {values[key]}' for key in ignored)}.",
            stacklevel=3,
        )


def methods_file(path: Path, where: str = "--methods") -> dict[str, Any]:
    """The methods in a YAML file, as under `methods` in a study file. UserError, after ``where``, if it is invalid."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{where}: {path} cannot be read: {error}") from error
    methods = content.get("methods", content) if isinstance(content, dict) else None
    if not isinstance(methods, dict) or not all(isinstance(value, dict) for value in methods.values()):
        raise UserError(f"{where}: {path}: expected a mapping of names to methods.")
    return methods


def reads_entropies(objective: Method) -> bool:
    """Whether the method has a mask that uses measured entropies if the batch has entropies."""
    kls = (part for part in objective.penalties if isinstance(part, Kl))
    return any(part.mask != "all" and part.entropy_signal != "covariance" for part in kls)
