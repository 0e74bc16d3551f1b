"""The names of arms and methods in figures, tables and texts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..objective import comparison_names, method, method_names
from ..study.runs import START

if TYPE_CHECKING:
    from ..results import StudyResults
    from ..study import Study


def updates_text(updates: object) -> str:
    """`1 update`, `16 updates`."""
    return f"{updates} update{'' if str(updates) == '1' else 's'}"


SETTINGS: dict[str, Callable[[str], str]] = {
    "updates_per_batch": updates_text,
    "epochs": lambda epochs: f"{epochs} pass{'' if str(epochs) == '1' else 'es'}",
    "off_policy_steps": lambda steps: f"rollouts {steps} step{'' if str(steps) == '1' else 's'} old",
    "learning_rate": lambda rate: f"learning rate {float(rate):g}",
}


@functools.cache
def _of_presets() -> dict[str, str]:
    return {name: method(name).label for name in (*method_names(), *comparison_names())}


def labels(study: Study) -> Callable[[str], str]:
    """Function from an arm or method to its name in figures and tables: `TEPO, 16 updates`.

    The name of a method is its `label`. Without a label, the key `BASE_REST` of a variant of BASE becomes the name of
    BASE and `REST`; any other key is the name, with spaces.
    """

    def of_method(name: str) -> str:
        changes = study.methods.get(name)
        if label := "initial model" if name == START else (changes and changes.label) or _of_presets().get(name):
            return label
        base = changes.base if changes else None
        if base and name.startswith(f"{base}_"):
            return f"{of_method(base).removesuffix(' ratio')}, {name.removeprefix(f'{base}_').replace('_', ' ')}"
        return name.replace("_", " ")

    def label(arm: str) -> str:
        name, *settings = arm.split("+")
        parts = [of_method(name)]
        for setting in settings:
            key, _, value = setting.partition("=")
            parts.append(SETTINGS[key](value) if key in SETTINGS else f"{key.replace('_', ' ')} {value}")
        return ", ".join(parts)

    return label


def name_of(results: StudyResults, arm: str, among: Iterable[str] = ()) -> str:
    """The label of an arm, with a note if training made no optimizer step.

    ``among``: the arms that are shown with it. If one of them differs from it only in the updates per batch, the
    label includes this arm's updates per batch.
    """
    text = labels(results.study)(arm)
    if "+" not in arm and any(other.startswith(f"{arm}+updates_per_batch=") for other in among):
        text += f", {updates_text(results.study.training.updates_per_batch)}"
    return text + (" (no updates)" if arm in results.untrained else "")
