"""Finds the evaluated models under given paths, groups them by arm, and compares their protocols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..initial_models import by_unit
from ..paths import START, EvaluationFolder, RunFolder, StudyFolder
from ..records import BenchmarkRecord, EvaluationFacts
from ..results import EVALUATE, model_evaluation
from ..study import Study, load_recorded_study
from ..study.fingerprint import start_seed
from ..text import flat, some

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class EvaluatedModel:
    """One evaluated model; ``folder`` contains its samples."""

    seed: str
    folder: EvaluationFolder
    protocol: dict[str, Any]
    prompt: tuple[str, str] | None
    facts: EvaluationFacts
    records: dict[str, BenchmarkRecord]


@dataclass
class ModelGroup:
    """A row of a comparison: one model, or an arm with a model per seed."""

    path: Path
    models: list[EvaluatedModel]
    name: str = ""
    study: Study | None = None  # the study of the arm, if its record can be read

    @property
    def is_start(self) -> bool:
        """Whether these are the initial models of a study."""
        return self.study is not None and self.path.name == START

    def paired_with(self, seed: str) -> str:
        """The seed of the model that is compared with a run of ``seed``: of initial models, the one it began from."""
        if self.study is None or not self.is_start or not seed.isdecimal():  # other models have names
            return seed
        return str(start_seed(self.study, int(seed)))

    def records(self, benchmark: str) -> dict[str, BenchmarkRecord]:
        """Seed → record, for seeds evaluated on ``benchmark``."""
        return {m.seed: m.records[benchmark] for m in self.models if benchmark in m.records}

    def scores(self, benchmark: str, seeds: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Score per problem [units, problems] of ``seeds`` (default: all), with the units of `start.by_unit`."""
        import numpy as np

        records = self.records(benchmark)
        rows = [records[seed].per_problem for seed in (seeds or records)]
        if len({len(row) for row in rows}) > 1:
            raise UserError(f"{self.name}: its seeds were evaluated on different problems of {benchmark}. {EVALUATE}")
        scores = np.array(rows, dtype=float)
        return by_unit(self.study, map(int, seeds or records), scores) if self.study else scores


def find(paths: Iterable[Path]) -> list[ModelGroup]:
    """The evaluations in ``paths``: run folders, evaluation folders, their records, results folders of studies."""
    groups: list[ModelGroup] = []
    for path in paths:
        for group in _find(path.resolve(), path):
            if any(group.path == other.path for other in groups):
                raise UserError(f"{path}: {group.path} is named twice.")
            groups.append(group)
    for group in groups:
        group.name = _name(group, groups)
    return groups


def benchmarks_of(groups: Iterable[ModelGroup]) -> list[str]:
    """The names of all benchmarks, in the order of the records."""
    return list(dict.fromkeys(name for g in groups for m in g.models for name in m.records))


def select_benchmarks(groups: Iterable[ModelGroup], wanted: Sequence[str] | None) -> list[ModelGroup]:
    """The groups with records of a benchmark in ``wanted`` (None: all), without those of other benchmarks."""
    groups = list(groups)
    if not wanted:
        return groups
    known = benchmarks_of(groups)
    for name in wanted:
        if name not in known:
            raise UserError(f"--benchmark: no record of {name!r} here. There are: {', '.join(known)}.")
    for model in (m for g in groups for m in g.models):
        model.records = {k: v for k, v in model.records.items() if k in wanted}
        settings = model.protocol.get("benchmarks", {})
        model.protocol = model.protocol | {"benchmarks": {k: v for k, v in settings.items() if k in wanted}}
    return [group for group in groups if benchmarks_of([group])]


def protocol_differences(groups: Sequence[ModelGroup]) -> list[str]:
    """The differences between the protocols, one line each; the model is ignored."""
    flattened = [
        (group.name, flat({k: v for k, v in model.protocol.items() if k != "model"}))
        for group in groups
        for model in group.models
    ]
    lines = []
    for key in dict.fromkeys(key for _, values in flattened for key in values):
        by_value: dict[str, list[str]] = {}
        for name, values in flattened:
            names = by_value.setdefault(str(values.get(key, "(none)")), [])
            if name not in names:
                names.append(name)
        if len(by_value) > 1:
            lines.append(f"{key}: " + "; ".join(f"{value} in {some(names)}" for value, names in by_value.items()))
    return lines


def check_same_protocol(groups: Sequence[ModelGroup], anyway: bool) -> list[str]:
    """`protocol_differences`; UserError if there are any, unless ``anyway``."""
    differing = protocol_differences(groups)
    if differing and not anyway:
        rest = [f"… and {len(differing) - 12} more"] if len(differing) > 12 else []
        lines = "".join(f"\n  {line}" for line in [*differing[:12], *rest])
        raise UserError(
            f"models evaluated under different protocols are not compared (use --anyway to compare them).{lines}"
        )
    return differing


def _find(path: Path, given: Path) -> list[ModelGroup]:
    if not path.exists():
        raise UserError(f"{given}: no such file or folder.")
    if path.is_file():
        folder = EvaluationFolder(path.parent)
        if path != folder.record:
            raise UserError(
                f"{given}: not a {folder.record.name}; name that, or the folder of a run or of a study's results."
            )
        return [_one(folder)]
    for folder in (EvaluationFolder(path), RunFolder(path).evaluation):
        if folder.record.exists():
            return [_one(folder)]
    groups = _of_study(StudyFolder(path))
    if not groups:
        raise UserError(
            f"{given}: no evaluation here. Name a run (results/STUDY/runs/ARM/seedS), its evaluation/ or records.json, "
            "or a study's results; what was trained and not evaluated has none yet (`policygrain evaluate`)."
        )
    return groups


def _one(folder: EvaluationFolder) -> ModelGroup:
    run = folder.path.parent if folder == RunFolder(folder.path.parent).evaluation else folder.path
    return ModelGroup(run, [_model(folder, run.name.removeprefix("seed"))])


def _model(folder: EvaluationFolder, seed: str) -> EvaluatedModel:
    evaluation = model_evaluation(folder)
    records = {r.benchmark: r for r in evaluation.records}
    return EvaluatedModel(seed, folder, evaluation.protocol, evaluation.prompt, evaluation.facts, records)


def _of_study(study: StudyFolder) -> list[ModelGroup]:
    """The arms of a study's results, initial models first."""
    groups: dict[Path, list[EvaluatedModel]] = {}
    for name, folder in study.evaluations():
        seed = name.rpartition("/seed")[2]
        groups.setdefault(folder.path.parents[1], []).append(_model(folder, seed))
    recorded = None
    with suppress(UserError):  # records can be compared without a readable study
        recorded = load_recorded_study(study.study)
    return [ModelGroup(path, models, study=recorded) for path, models in groups.items()]


def _name(group: ModelGroup, groups: Sequence[ModelGroup]) -> str:
    """The shortest unambiguous end of the group's path: `grpo/seed0`, `laptop/grpo/seed0`."""
    tails = {id(g): [p for p in g.path.parts if p not in ("runs", "evaluation")] for g in groups}
    parts = tails.pop(id(group))
    for length in range(2 if parts[-1].startswith("seed") else 1, len(parts)):
        if all(parts[-length:] != tail[-length:] for tail in tails.values()):
            return "/".join(parts[-length:])
    return str(group.path)
