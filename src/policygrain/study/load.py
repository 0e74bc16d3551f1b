"""Reads a study file and the files it is based on; errors name file and key."""

from __future__ import annotations

import functools
import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import UserError, explained
from ..merging import Dumper, Loader, merge
from .runs import START, Arm, arms_of, run_matrix
from .schema import Study, distinct

LONGEST_ARM = 150  # characters; folder names, with what is added to an arm's name, have at most 255 bytes


def load_study(path: Path | str, *above: Path, changes: Mapping[str, Any] = {}) -> Study:
    """The study in a YAML file; the keys of the files ``above``, and then ``changes``, override its own."""
    path = Path(path)
    data = functools.reduce(merge, [*map(_read, above), _typed(dict(changes))], _read(path))
    return parse_study(data, path)


def study_text(study: Study, path: Path) -> str:
    """The YAML of a study with its base merged, to be written to ``path``."""
    tuned_on = [os.path.relpath(other, path.parent) for other in study.tuned_on]
    content = study.model_dump(mode="json") | {"base": None, "tuned_on": tuned_on}
    return str(yaml.dump(content, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def parse_study(data: Mapping[str, Any], path: Path) -> Study:
    """The study in ``data``, as read from ``path``. UserError names every wrong key.

    `base` and `tuned_on` are relative to the file that contains them, other paths to the working directory.
    """
    merged = _with_base(_from_here(data, path), path, (path.resolve(),))
    try:
        study = Study.model_validate(merged)
        _check_arms(study)
    except ValidationError as error:
        raise UserError(f"{path}: the study cannot be read.\n{indent(explained(error), '  ')}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return study


def _check_arms(study: Study) -> None:
    for name, experiment in study.experiments.items():
        try:
            for arm in arms_of(experiment, study):
                _check_arm(arm)
        except UserError as error:
            raise UserError(f"experiments.{name}.{error}") from error
    try:
        distinct([name.lower() for name in run_matrix(study).arms])
    except ValueError as error:
        raise UserError(f"methods: {error}, if case is ignored as on some file systems.") from error


def _check_arm(arm: Arm) -> None:
    if arm.method.n_mtp_heads and arm.training.compute != "float32":
        raise UserError(f"methods: {arm.name} has prediction heads, which need training.compute: float32.")
    if arm.method.sampler.corrects and arm.training.old_log_probs == "engine":
        raise UserError(
            f"methods: {arm.name} has sampler.correction_cap or rejection_high; set training.old_log_probs: trainer."
        )
    if (invalid := re.search(r"[^A-Za-z0-9_.+=-]", arm.name)) is not None:
        raise UserError(
            f"vary: {arm.name!r} contains {invalid[0]!r} and cannot name a folder; write a study per value."
        )
    if value := next((value for _, value in arm.settings if "+" in str(value)), None):
        raise UserError(f"vary: {value!r} contains '+', which separates settings in names; write a study per value.")
    if len(arm.name) > LONGEST_ARM:
        raise UserError(
            f"vary: {arm.name!r} has more than {LONGEST_ARM} characters and cannot name a folder; vary less."
        )
    if arm.name == START:
        raise UserError(f"methods: {START!r} is reserved for the initial models.")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such study file.") from error
    except RecursionError as error:
        raise UserError(f"{path}: not readable as YAML: nested too deeply.") from error
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:  # a date such as 2026-13-01 is a ValueError
        raise UserError(f"{path}: not readable as YAML: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: a study file must be a mapping of keys, see config.yaml.")
    return data


def _typed(value: Any) -> Any:
    """``value`` with numbers for texts that are numbers in YAML; Snakemake's `--config seeds=[0]` has the text "0"."""
    if isinstance(value, dict):
        return {key: _typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_typed(part) for part in value]
    try:
        read = yaml.load(value, Loader) if isinstance(value, str) else value
    except (ValueError, yaml.YAMLError):
        return value
    return read if isinstance(read, bool | int | float | None) else value


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
        raise UserError(f"{path}: base: {reprlib.repr(base)} is not the name of a study file.") from error
    if base_path in seen:
        raise UserError(f"{path}: base: {base!r} is a circular reference.")
    if "name" not in data:
        raise UserError(f"{path}: name: a study with a base needs a name of its own, which is that of its folder.")
    # Experiments are not merged with those of the base, whose figures show its own experiments.
    base_data = dict(_with_base(_from_here(_read(base_path), base_path), base_path, (*seen, base_path)))
    if "experiments" in data:
        base_data = {key: value for key, value in base_data.items() if key not in ("figures", "sweeps")}
    return merge(base_data, data, replace=("experiments",))
