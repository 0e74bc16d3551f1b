"""The names of arms, methods and comparisons in figures, tables and texts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..objective import comparison_names, method, method_names
from ..study.runs import START, Pair, different_parts

if TYPE_CHECKING:
    from ..results import StudyResults
    from ..study import Study


def counted(number: object, word: str) -> str:
    """`1 update`, `16 updates`."""
    return f"{number} {word}{'' if str(number) == '1' else 's'}"


SETTINGS: dict[str, Callable[[str], str]] = {
    "updates_per_batch": lambda updates: counted(updates, "update"),
    "epochs": lambda epochs: counted(epochs, "epoch"),
    "off_policy_steps": lambda steps: f"rollouts {counted(steps, 'step')} old" if steps != "0" else "on-policy",
    "learning_rate": lambda rate: f"learning rate {float(rate):g}",
}


def setting_text(key: str, value: object) -> str:
    """A training setting: `16 updates`, `group 4`."""
    return SETTINGS[key](str(value)) if key in SETTINGS else f"{key.replace('_', ' ')} {value}"


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
        return ", ".join([of_method(name), *(setting_text(*setting.split("=")) for setting in settings)])

    return label


def name_of(results: StudyResults, arm: str) -> str:
    """The label of an arm, with a note if training made no optimizer step."""
    return labels(results.study)(arm) + (" (no updates)" if arm in results.untrained else "")


def pair_text(study: Study, pair: Pair) -> str:
    """`token, clipped − no ratio`, with the parts in which whole methods differ.

    Where only the age of rollouts differs, `no ratio: 48 steps old − on-policy`.
    """
    one, other, label = pair.arm, pair.reference, labels(study)
    if one.method_name == other.method_name:
        return f"{label(one.method_name)}: {counted(one.training.off_policy_steps, 'step')} old − on-policy"
    parts = ", ".join(different_parts(one.method, other.method))
    return f"{label(one.method_name)} − {label(other.method_name)}" + f" (whole methods: {parts})" * pair.whole
