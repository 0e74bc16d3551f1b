"""Dependencies of each result of a study.

Every key of the schema declares which artefacts depend on it directly (`decides`); the fingerprint of an artefact
includes those of the artefacts that it is made from. This module alone determines whether a result is up to date: for
the finished jobs of Snakemake, the key of a run, resuming, and the readers of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from .. import digests
from ..objective import Method, method
from ..objective.method import TEXTS
from .runs import Arm, Run, RunMatrix, methods_of, run_matrix
from .schema import Study
from .sections import Artefact, decides, leaves

CODE = "code"  # a setting of runs: custom function → digest of its file


class Fingerprints:
    """The fingerprints of one study's artefacts: 16 hexadecimal digits each."""

    def __init__(self, study: Study, sources: Mapping[str, str] | None = None, start: str | None = None) -> None:
        """``sources``: source of problems, or custom function → digest of its file, for those that are files.

        ``start``: digest or commit of the initial model; None if unknown, and for tiny models, which are identified by
        their settings.
        """
        self.study, self.sources, self.start = study, sources or {}, start
        # Computed once: a workflow asks for each of these hundreds of times.
        self._settings_of = cache(partial(settings, study))
        self._methods: dict[str, dict[str, Any]] = {}
        self._runs: dict[Run, str] = {}
        self._start_models: dict[int, str] = {}

    @cached_property
    def matrix(self) -> RunMatrix:
        """Every run of the study."""
        return run_matrix(self.study)

    @cached_property
    def training_data(self) -> str:
        """Training and validation problems."""
        return digests.of_json([self._settings_of("training_data"), self._digests_of(self.study.data.train)])

    @cached_property
    def benchmarks(self) -> str:
        """The problems of all benchmarks."""
        sources = [b.source for b in self.study.evaluation.benchmarks]
        return digests.of_json([self._settings_of("benchmarks"), self._digests_of(sources)])

    def data(self) -> str:
        """The prepared problems, and which benchmark problems are among the training prompts."""
        return digests.of_json([self.training_data, self.benchmarks])

    def start_model(self, seed: int) -> str:
        """An initial model; ``seed`` is the seed of the initial model, not of a run."""
        if seed not in self._start_models:
            identity = [] if self.start is None else [self.start]
            self._start_models[seed] = digests.of_json([self.start_settings(seed), self.training_data, *identity])
        return self._start_models[seed]

    def run(self, run: Run) -> str:
        """A training run, including its data and initial model."""
        if run not in self._runs:
            run_settings = self.run_settings(self.matrix.arms[run.arm], run.seed)
            start = self.start_model(start_seed(self.study, run.seed))
            self._runs[run] = digests.of_json([run_settings, self.training_data, start])
        return self._runs[run]

    def process(self, runs: Sequence[Run]) -> str:
        """The runs that one process trains and, with `evaluation.after_training`, evaluates."""
        trained = together(self.run(run) for run in runs)
        evaluated = [run for run in runs if run.arm in self.matrix.evaluated_arms]
        if not (self.study.evaluation.after_training and evaluated):
            return trained
        return together([trained, self.evaluation(evaluated)])

    def evaluation(self, runs: Sequence[Run], seeds: Sequence[int] = ()) -> str:
        """The evaluation of the final models of ``runs`` and of the initial models of ``seeds``."""
        models = [self.run(run) for run in runs] + [self.start_model(seed) for seed in seeds]
        protocol = self._settings_of("evaluation")
        return digests.of_json([protocol, self.training_data, self.benchmarks, models])

    def figures(self) -> str:
        """All figures and tables, which depend on all results of the study."""
        names = dict.fromkeys(arm.method_name for arm in self.matrix.arms.values())
        shown = {name: method(name, self.study.methods) for name in names}
        cited = {name: [getattr(shown_method, key) for key in TEXTS] for name, shown_method in shown.items()}
        runs = {run.name: self.run(run) for run in self.matrix.runs}
        evaluated = self.evaluation(self.matrix.evaluated, start_seeds(self.study))
        return digests.of_json([self._settings_of("figures"), cited, [runs, evaluated]])

    def tracking(self) -> str:
        """The copy in MLflow."""
        return digests.of_json([self._settings_of("tracking"), self.figures()])

    def start_settings(self, seed: int) -> dict[str, Any]:
        """The settings that an initial model depends on directly."""
        return {**self._settings_of("start_model"), "seed": seed}

    def run_settings(self, arm: Arm, seed: int) -> dict[str, Any]:
        """The settings that a run depends on directly: those of its arm, with the resolved method."""
        if arm.name not in self._methods:
            arm_study = self.study.model_copy(update={"training": arm.training(self.study)})
            without_methods = {key: value for key, value in settings(arm_study, "run").items() if key != "methods"}
            chosen = arm.method(self.study)
            self._methods[arm.name] = {**without_methods, "method": _content(chosen), **self._code([chosen])}
        return {**self._methods[arm.name], "seed": seed, "start_seed": start_seed(self.study, seed)}

    def _code(self, methods: Iterable[Method]) -> dict[str, dict[str, str]]:
        """The digests of the custom functions in these methods, as the setting `CODE`; empty without any."""
        functions = self._digests_of([name for m in methods for name in m.custom_functions])
        return {CODE: functions} if functions else {}

    def _digests_of(self, sources: Sequence[str]) -> dict[str, str]:
        return {source: self.sources[source] for source in sources if source in self.sources}


def code_digests(study: Study) -> dict[str, str]:
    """Custom function → digest of the file that defines it, for functions that are found; nothing is imported.

    The digest does not include other modules that this file imports.
    """
    functions = [name for m in methods_of(study) for name in m.custom_functions]
    files = {name: _file_of(name.partition(":")[0]) for name in functions}
    return {name: digests.of_file(path) for name, path in files.items() if path is not None}


def _file_of(module: str) -> Path | None:
    """The file of a module that is not imported; None if it is not found."""
    package, *parts = module.split(".")
    spec = find_spec(package)  # of a top-level name: imports nothing, and knows editable installations
    for part in parts:
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _content(trained_method: Method) -> dict[str, Any]:
    """A method as data, as the trainer uses it, without keys that change no result."""
    return {key: value for key, value in trained_method.with_entropies().data().items() if key not in TEXTS}


def settings(section: BaseModel, artefact: Artefact, prefix: str = "") -> dict[str, Any]:
    """The keys that ``artefact`` depends on directly, with their values; keys with default values are left out.

    Without the defaults, a new key of the schema does not make finished results outdated.
    """
    values: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        value, key, declared = getattr(section, name), f"{prefix}{name}", decides(info)
        if declared is not None:
            if artefact in declared and (info.is_required() or value != info.get_default()):
                values[key] = section.model_dump(mode="json", include={name})[name]
            continue
        if isinstance(value, BaseModel):
            nested = settings(value, artefact, f"{key}.")
            if info.get_default() is None and _concerns(type(value), artefact):
                values[key] = "set"  # an optional section, in which all keys may have default values
            values |= nested
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                values |= settings(item, artefact, f"{key}[{i}].")
        elif isinstance(value, dict):
            for item_name, item in value.items():
                values |= settings(item, artefact, f"{key}.{item_name}.")
    return values


def _concerns(section: type[BaseModel], artefact: Artefact) -> bool:
    return any(artefact in (decides(info) or ()) for _, info in leaves(section))


def together(fingerprints: Iterable[str]) -> str:
    """One fingerprint for several results of one process."""
    return digests.of_json(list(fingerprints))


def start_seed(study: Study, seed: int) -> int:
    """The seed of the initial model of a run with ``seed``: with `model.starts`, seeds share initial models in turn."""
    first, starts = min(study.seeds), study.model.starts
    return seed if starts is None else first + (seed - first) % starts


def start_seeds(study: Study) -> list[int]:
    """The seeds of the initial models of a study."""
    return sorted({start_seed(study, seed) for seed in study.seeds})
