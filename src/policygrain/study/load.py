"""Reads a study file and the files it is based on; errors name file and key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from .. import left
from ..errors import UserError, did_you_mean
from ..merging import merge
from ..text import shortened
from .checks import check_credentials, check_keys
from .schema import Study
from .sections import section_of


def load_study(path: Path | str) -> Study:
    """The study in a YAML file."""
    path = Path(path)
    return parse_study(_read(path), path)


def load_recorded_study(path: Path | str) -> Study:
    """The study that results were made from, as recorded with them; checks for future runs are skipped."""
    path = Path(path)
    return parse_study(_read(path), path, recorded=True)


def study_text(study: Study, path: Path) -> str:
    """The YAML of a study with its base merged, to be written to ``path``."""
    tuned_on = [os.path.relpath(other, path.parent) for other in study.tuned_on]
    content = study.model_dump(mode="json") | {"base": None, "tuned_on": tuned_on}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def parse_study(data: Mapping[str, Any], path: Path, recorded: bool = False) -> Study:
    """The study in ``data``, as read from ``path``.

    `base` and `tuned_on` are relative to the file that contains them, other paths to the working directory.
    ``recorded``: the study has been run, so checks for future runs are skipped. UserError names every wrong key.
    Problems, models and the network are not accessed; `policygrain check` does that.
    """
    merged = _with_base(data if recorded else _from_here(data, path), path, (path.resolve(),))
    try:
        study = Study.model_validate(merged)
    except ValidationError as error:
        lines = "\n".join(f"  {_explain(e)}" for e in error.errors())
        raise UserError(f"{path}: the study cannot be read.\n{lines}") from error
    try:
        check_credentials(study)
        if not recorded:
            check_keys(study)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return study


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses repeated keys; PyYAML silently uses the last one."""

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


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such study file.") from error
    except RecursionError as error:
        raise UserError(f"{path}: not readable as YAML: nested too deeply.") from error
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:  # a date such as 2026-13-01 is a ValueError
        raise UserError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: a study file must be a mapping of keys, see config.yaml.")
    return data


def _from_here(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """``data`` with the paths under `tuned_on` relative to the working directory instead of to ``path``."""
    if not isinstance(tuned_on := data.get("tuned_on"), list):
        return dict(data)
    relative = [os.path.relpath(path.parent / p) if isinstance(p, str) and "\0" not in p else p for p in tuned_on]
    return {**data, "tuned_on": relative}


def _with_base(data: Mapping[str, Any], path: Path, seen: tuple[Path, ...]) -> Mapping[str, Any]:
    base = data.get("base")
    if base is None:
        return data
    try:
        base_path = (path.parent / base).resolve()
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: base: {shortened(repr(base))} is not the name of a study file.") from error
    if base_path in seen:
        raise UserError(f"{path}: base: {base!r} is a circular reference.")
    if "name" not in data:
        raise UserError(
            f"{path}: name: a study with a base needs a name of its own; otherwise both would use the same folder."
        )
    # Experiments are not merged with those of the base, whose figures show its own experiments.
    base_data = dict(_with_base(_from_here(_read(base_path), base_path), base_path, (*seen, base_path)))
    if "experiments" in data:
        base_data = {key: value for key, value in base_data.items() if key not in ("figures", "sweeps")}
    return merge(base_data, data, replace=("experiments",))


def _explain(error: Any) -> str:
    """One pydantic error as a line of text: the key, what is wrong, and similar keys if it is unknown."""
    where = ".".join(str(part) for part in error["loc"])
    if error["loc"][-1:] == ("[key]",):
        where = f"{'.'.join(map(str, error['loc'][:-2]))}: as a key"
        return f"{where}, {error['input']!r} is not a valid name: {error['msg']}."
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        if (place := next((place for place in left.KEYS if fnmatchcase(where, place)), None)) is not None:
            return f"{where}: this key {left.KEYS[place]}."
        return f"{where}: unknown key.{did_you_mean(str(key), _keys_at(parents))}"
    if error["type"] == "missing":
        return f"{where}: this key is missing."
    if where.startswith("figures.") and (went := left.FIGURES.get(str(error["input"]))):
        return f"{where}: the figure '{error['input']}' {went}."
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"{where}: {error['input']!r} is not a valid value.{did_you_mean(error['input'], known)}"
    if error["type"] == "string_type" and isinstance(error["input"], bool):
        return f"{where}: must be text; YAML reads on, off, yes and no as true and false, so quote it."
    if error["type"] == "value_error":  # raised by the schema's own validators
        return f"{where}: {error['msg'].removeprefix('Value error, ')}."
    return f"{where}: {error['msg']} (got {shortened(repr(error['input']))})."


def _keys_at(location: list[Any]) -> list[str]:
    """The keys that the schema knows at ``location``."""
    section: type[BaseModel] | None = Study
    for part in location:
        if section is not None and part in section.model_fields:
            section = section_of(section.model_fields[part].annotation)
    return list(section.model_fields) if section is not None else []
