"""Reads the YAML of studies and methods, and merges it with that of a base."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml


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


class Loader(yaml.SafeLoader):
    """YAML loader that refuses repeated keys, of which PyYAML uses the last one, and reads `1e-3` as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping; ConstructorError names a repeated key and its line."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs more than once", key.start_mark
                )
            if isinstance(key.value, str) and key.tag != "tag:yaml.org,2002:merge":
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """YAML dumper whose texts `Loader` reads as texts."""


# YAML 1.1 requires a point before the exponent and a sign after it.
for _one in (Loader, Dumper):
    _one.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
