"""Methods of a study by name, and words for their ratios."""

from __future__ import annotations

from collections.abc import Iterable

from ..objective import Method, method
from ..objective.method import TEXTS
from ..study import Study

# What may differ between methods that are said to differ in one part only.
NOT_COMPARED = (*TEXTS, "sampler")


def resolved(study: Study, names: Iterable[str]) -> dict[str, Method]:
    """Name → method, with the changes of the study."""
    return {name: method(name, study.methods) for name in names}


def ratio_text(found: Method) -> str:
    """A ratio in words: `block K=5`, `no ratio`."""
    return "no ratio" if found.ratio.name == "none" else found.ratio.label
