"""What each result of a study depends on.

Every key of the schema declares which artefacts depend on it directly (`decides`); `UPSTREAM` lists the artefacts that
each artefact is made from. This module alone determines whether a result is up to date: for the finished jobs of
Snakemake, the key of a run, resuming, and the readers of results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .. import digests
from .runs import Arm, Run, RunMatrix, run_matrix
from .schema import Artefact, Study

UPSTREAM: Mapping[Artefact, tuple[Artefact, ...]] = {
    "training_data": (),
    "benchmarks": (),
    "start_model": ("training_data",),
    "run": ("training_data", "start_model"),
    "probe": ("training_data", "start_model"),
    # Which benchmark problems are among the training prompts is part of an evaluation.
    "evaluation": ("training_data", "benchmarks", "start_model", "run"),
    "figures": ("run", "probe", "evaluation"),
    "tracking": ("figures",),
}


def affected(direct: Sequence[Artefact]) -> set[Artefact]:
    """The artefacts in ``direct`` and everything made from them."""
    found = set(direct)
    while more := {a for a, made_from in UPSTREAM.items() if found & set(made_from)} - found:
        found |= more
    return found


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a schema that is not a section, with its field: `training.steps`, `evaluation.benchmarks[].name`."""
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        if section is None or decides(info) is not None:
            yield f"{prefix}{name}", info
        else:
            kind = str(info.annotation)
            marker = "[]" if kind.startswith("list") else ".NAME" if "dict" in kind else ""
            yield from leaves(section, f"{prefix}{name}{marker}.")


def decides(info: FieldInfo) -> list[Artefact] | None:
    """The artefacts that depend on a key directly; None for keys without a declaration, such as those of sections."""
    extra = info.json_schema_extra
    return extra.get("decides") if isinstance(extra, dict) else None  # type: ignore[return-value]


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section type of a key, of its list items or of its mapping values; None for other keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (section_of(a) for a in get_args(annotation))
    return next((f for f in found if f is not None), None)


class Fingerprints:
    """The fingerprints of one study's artefacts: 16 hexadecimal digits each."""

    def __init__(self, study: Study, sources: Mapping[str, str] | None = None) -> None:
        """``sources``: source of problems → digest of its file, for sources that are files."""
        self.study, self.sources = study, sources or {}
        self._methods: dict[str, dict[str, Any]] = {}

    @cached_property
    def matrix(self) -> RunMatrix:
        """Every run of the study."""
        return run_matrix(self.study)

    @cached_property
    def training_data(self) -> str:
        """Training and validation problems."""
        return digests.of_json([settings(self.study, "training_data"), self._digests_of(self.study.data.train)])

    @cached_property
    def benchmarks(self) -> str:
        """The problems of all benchmarks."""
        named = [b.source for b in self.study.evaluation.benchmarks]
        return digests.of_json([settings(self.study, "benchmarks"), self._digests_of(named)])

    def data(self) -> str:
        """The prepared problems, and which benchmark problems are among the training prompts."""
        return digests.of_json([self.training_data, self.benchmarks])

    def start_model(self, seed: int) -> str:
        """A start model; ``seed`` is the seed of the start model, not of a run."""
        return digests.of_json([self.start_settings(seed), self.training_data])

    def run(self, run: Run) -> str:
        """A training run, including its data and start model."""
        own = self.run_settings(self.matrix.arms[run.arm], run.seed)
        return digests.of_json([own, self.training_data, self.start_model(start_seed(self.study, run.seed))])

    def runs(self, runs: Sequence[Run]) -> str:
        """Several runs that are trained by one process."""
        return digests.of_json([self.run(run) for run in runs])

    def probe(self, seed: int) -> str:
        """A probe, including its data and start model."""
        made_from = [self.training_data, self.start_model(start_seed(self.study, seed))]
        return digests.of_json([self.probe_settings(seed), *made_from])

    def evaluation(self, runs: Sequence[Run], seeds: Sequence[int] = ()) -> str:
        """The evaluation of the final models of ``runs`` and of the start models of ``seeds``."""
        made_from = [self.run(run) for run in runs] + [self.start_model(seed) for seed in seeds]
        own = settings(self.study, "evaluation")
        return digests.of_json([own, self.training_data, self.benchmarks, made_from])

    def figures(self) -> str:
        """All figures and tables: everything that any number of the study depends on."""
        runs = {run.name: self.run(run) for run in self.matrix.runs}
        probes = [self.probe(seed) for seed in self.study.seeds] if self.study.probe else []
        evaluated = self.evaluation(self.matrix.evaluated, start_seeds(self.study))
        labels = {name: arm.method(self.study) for name, arm in self.matrix.arms.items()}
        cited = {name: [method.summary, method.source] for name, method in labels.items()}
        return digests.of_json([settings(self.study, "figures"), cited, runs, probes, evaluated])

    def tracking(self) -> str:
        """The mirror in MLflow."""
        return digests.of_json([settings(self.study, "tracking"), self.figures()])

    def start_settings(self, seed: int) -> dict[str, Any]:
        """The settings that a start model depends on directly."""
        return {**settings(self.study, "start_model"), "seed": seed}

    def run_settings(self, arm: Arm, seed: int) -> dict[str, Any]:
        """The settings that a run depends on directly: those of its arm, with the resolved method."""
        if arm.name not in self._methods:
            own = self.study.model_copy(update={"training": arm.training(self.study)})
            found = {key: value for key, value in settings(own, "run").items() if key != "methods"}
            method = arm.method(self.study).data()
            self._methods[arm.name] = {**found, "method": {k: v for k, v in method.items() if k not in CITATION}}
        return {**self._methods[arm.name], "seed": seed, "start_seed": start_seed(self.study, seed)}

    def probe_settings(self, seed: int) -> dict[str, Any]:
        """The settings that a probe depends on directly."""
        return {**settings(self.study, "probe"), "seed": seed, "start_seed": start_seed(self.study, seed)}

    def _digests_of(self, sources: Sequence[str]) -> dict[str, str]:
        return {source: self.sources[source] for source in sources if source in self.sources}


CITATION = ("summary", "source")  # keys of a method that change no result


def settings(section: BaseModel, artefact: Artefact, prefix: str = "") -> dict[str, Any]:
    """The keys that ``artefact`` depends on directly, with their values; keys with default values are left out.

    Without the defaults, a new key of the schema does not make finished results outdated.
    """
    found: dict[str, Any] = {}
    for name, info in type(section).model_fields.items():
        value, key, declared = getattr(section, name), f"{prefix}{name}", decides(info)
        if declared is not None:
            if artefact in declared and (info.is_required() or value != info.get_default()):
                found[key] = section.model_dump(mode="json", include={name})[name]
            continue
        if isinstance(value, BaseModel):
            inside = settings(value, artefact, f"{key}.")
            if info.get_default() is None and _concerns(type(value), artefact):
                found[key] = "set"  # an optional section, in which all keys may have default values
            found |= inside
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                found |= settings(item, artefact, f"{key}[{i}].")
        elif isinstance(value, dict):
            for item_name, item in value.items():
                found |= settings(item, artefact, f"{key}.{item_name}.")
    return found


def _concerns(section: type[BaseModel], artefact: Artefact) -> bool:
    return any(artefact in (decides(info) or ()) for _, info in leaves(section))


def start_seed(study: Study, seed: int) -> int:
    """The seed of the start model that a run with ``seed`` begins from."""
    return seed if study.model.warm_start_per_seed else study.seeds[0]


def start_seeds(study: Study) -> list[int]:
    """The seeds of all start models of a study."""
    return sorted({start_seed(study, seed) for seed in study.seeds})
