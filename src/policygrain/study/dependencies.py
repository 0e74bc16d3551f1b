"""What each stage of a study depends on, by what the keys of the schema say of themselves (`decides`).

`stage_settings` is the content of the files in `results/STUDY/settings/`, by which Snakemake decides what to make
again; the settings of a run and of an initial model are in their records, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from .. import digests
from ..objective.method import TEXTS
from .runs import START, Arm, run_matrix
from .schema import Artefact, Study, decides, leaves

CODE = "code"  # a setting of runs: custom function, or file of a command → digest
# Increased with a change of the program after which results of a stage differ, so that it runs again; records have it.
VERSIONS = {"data": 3, "benchmarks": 2, "start": 1, "train": 4, "evaluation": 3, "figures": 1, "tracking": 1}
FILES_END = re.compile(r"""[\s;&|()<>"'`]+""")  # between the names of files in a command


def stage_settings(study: Study, sources: Mapping[str, str], start: str | None) -> dict[str, Any]:
    """Name of a file in `settings/` → its content, of every stage, arm and figure of a study.

    ``sources``: source of problems → digest of its file. ``start``: digest or commit of a pretrained initial model.
    """
    arms = run_matrix(study).arms
    texts = {arm.method_name: [getattr(arm.method, key) for key in TEXTS] for arm in arms.values()}
    drawn = {**settings(study, "figures"), "texts": texts}
    drawn.pop("figures", None)
    problems = {s: sources[s] for s in study.data.train if s in sources}
    benchmarks = {b.source: sources[b.source] for b in study.evaluation.benchmarks if b.source in sources}
    pretrained = {} if start is None else {"start_model": start}
    begin = pretrained if study.model.starts is None else {**pretrained, "first_seed": min(study.seeds)}  # `start_seed`
    asked, evaluated = {**settings(study, "evaluation"), **pretrained}, evaluated_models(study)
    stages: dict[str, tuple[str, Any]] = {
        "data": ("data", {**settings(study, "training_data"), "sources": problems}),
        "benchmarks": ("benchmarks", {**settings(study, "benchmarks"), "sources": benchmarks}),
        "start": ("start", {**settings(study, "start_model"), **(pretrained if study.model.sft else {})}),
        **{f"arms/{name}": ("train", {**arm_settings(study, arm), **begin}) for name, arm in arms.items()},
        **{f"evaluation/{arm}": ("evaluation", {**asked, "models": names}) for arm, names in evaluated.items()},
        **{f"figures/{name}": ("figures", drawn) for name in study.figures},
        "tables": ("figures", drawn),
        "report": ("figures", {**drawn, "figures": study.figures}),
        "tracking": ("tracking", settings(study, "tracking")),
    }
    return {name: {"version": VERSIONS[stage], **content} for name, (stage, content) in stages.items()}


def arm_settings(study: Study, arm: Arm) -> dict[str, Any]:
    """The settings that all runs of an arm depend on directly, with the resolved method."""
    found = settings(study.model_copy(update={"training": arm.training}), "run")
    found.pop("methods", None)
    found["method"] = {key: value for key, value in arm.method.data().items() if key not in TEXTS}
    return {"version": VERSIONS["train"], **found, **({CODE: code} if (code := code_digests(arm)) else {})}


def run_settings(study: Study, arm: Arm, seed: int) -> dict[str, Any]:
    return {**arm_settings(study, arm), **seeds_of(study, seed)}


def seeds_of(study: Study, seed: int) -> dict[str, int]:
    return {"seed": seed, "start_seed": start_seed(study, seed) if study.model.is_made else seed}


def evaluated_models(study: Study) -> dict[str, list[str]]:
    """Arm → the names of its models that are evaluated: of the initial models, and of each arm."""
    models = {START: [f"{START}/seed{seed}" for seed in start_seeds(study)]}
    for run in sorted(run_matrix(study).evaluated):
        models.setdefault(run.arm, []).append(run.name)
    return models


def code_digests(arm: Arm) -> dict[str, str]:
    """Custom function, or file below the working directory named by the command or `training.trl` → its digest."""
    files = {name: _file_of(name.partition(":")[0]) for name in arm.method.custom_functions}
    command = arm.training.command or ""
    for key, value in (("method", arm.method_name), ("arm", arm.name), *arm.settings):
        command = command.replace(f"{{{key}}}", str(value))
    words = [part for word in FILES_END.split(command) for part in (word, word.partition("=")[2])]  # --config=FILE
    for word in (*words, *(x for x in arm.training.trl.values() if isinstance(x, str))):
        if os.path.isfile(word) and Path(word).resolve().is_relative_to(Path.cwd()):  # Path's fails for long words
            files[word] = Path(word)
    return {name: digests.of_file(path) for name, path in files.items() if path is not None}


def _file_of(module: str) -> Path | None:
    package, *parts = module.split(".")
    spec = find_spec(package)  # of a top-level name: imports nothing, and knows editable installations
    for part in parts:
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def settings(section: BaseModel, artefact: Artefact, prefix: str = "") -> dict[str, Any]:
    """The keys that ``artefact`` depends on directly, with their values.

    Without the default values, so that a new key of the schema does not make finished results outdated.
    """
    values: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        value, key, declared = getattr(section, name), f"{prefix}{name}", decides(info)
        if declared is not None:
            if artefact in declared and (info.is_required() or value != info.get_default()):
                values[key] = section.model_dump(mode="json", include={name})[name]
            continue
        if isinstance(value, BaseModel):
            if info.get_default() is None and any(artefact in (decides(i) or ()) for _, i in leaves(type(value))):
                values[key] = "set"  # an optional section, in which all keys may have default values
            values |= settings(value, artefact, f"{key}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                values |= settings(item, artefact, f"{key}[{i}].")
        elif isinstance(value, dict):
            for item_name, item in value.items():
                values |= settings(item, artefact, f"{key}.{item_name}.")
    return values


def start_seed(study: Study, seed: int) -> int:
    """The seed of the initial model of a run with ``seed``: with `model.starts`, seeds share initial models in turn."""
    first, starts = min(study.seeds), study.model.starts if study.model.is_made else 1  # a pretrained one
    return seed if starts is None else first + (seed - first) % starts


def start_seeds(study: Study) -> list[int]:
    return sorted({start_seed(study, seed) for seed in study.seeds})
