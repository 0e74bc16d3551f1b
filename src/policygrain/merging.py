"""Merges a study file, or a method, with its base."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any


def merge(below: Mapping[str, Any], above: Mapping[str, Any], *, replace: Collection[str] = ()) -> dict[str, Any]:
    """``below`` with the changes of ``above``; neither is modified.

    Mappings are merged key by key, but a mapping in ``above`` with another ``name`` than in ``below`` replaces it. All
    other values are replaced, also by null. A text in ``below`` is treated as a mapping that has only this ``name`` if
    ``above`` has a mapping without a name. Values of the keys in ``replace`` are never merged.
    """
    merged = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = merged.get(key)
        if not isinstance(value, Mapping) or key in replace:
            merged[key] = copy.deepcopy(value)
            continue
        if isinstance(old, str) and "name" not in value:
            old = {"name": old}
        same = isinstance(old, Mapping) and value.get("name", old.get("name")) == old.get("name")
        merged[key] = merge(old if isinstance(old, Mapping) and same else {}, value)
    return merged
