"""An instrument measures the initial models of a study: what estimators and rounds have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from policygrain import digests
from policygrain.errors import UserError
from policygrain.objective import Method
from policygrain.provenance import commit
from policygrain.records import write_record
from policygrain.train.start_model import check_start_model

from .measured_policy import MeasuredPolicy, open_measured_policy, plain
from .options import Options
from .records import EstimatorsRecord, RoundsRecord

if TYPE_CHECKING:
    from policygrain.paths import DataFolder
    from policygrain.results import StudyResults
    from policygrain.study import Study

R = TypeVar("R", EstimatorsRecord, RoundsRecord)


class Instrument(ABC, Generic[R]):
    """A measurement of an initial model at each stage of its training by a reference method."""

    name: ClassVar[str]
    options: type[Options]
    record: type[R]

    def __init__(self, spec: Any, methods: list[Method]) -> None:
        self.spec, self.methods, self.rows = spec, methods, list[Any]()

    @abstractmethod
    def stage(self, measured: MeasuredPolicy) -> None:
        """Measure the methods on the policy, and restore the policy."""

    @abstractmethod
    def entries(self, measured: MeasuredPolicy) -> dict[str, Any]:
        """The fields of the record that only this instrument has."""


def measure(instrument: type[Instrument[R]], spec: Options, study: Study, seed: int, start: str, data: DataFolder) -> R:
    """Measure the initial model ``start`` of ``seed``.

    UserError, before anything is computed, if the measurement needs more prompts than there are.
    """
    started, made_at = time.perf_counter(), commit()
    methods = [study.method(name) for name in spec.methods]
    measurement = instrument(spec, [plain(one) for one in methods])
    with open_measured_policy(study, spec.reference, seed, start, data) as measured:
        spec.check_prompts(len(measured.train_problems))
        for steps in sorted(spec.steps):
            measured.train_until(steps)
            measurement.stage(measured)
        entries = measurement.entries(measured)
    model = check_start_model(Path(start), study.model.revision)
    return instrument.record(
        seed=seed,
        settings={"study": study.name, **asdict(spec), "methods": {one.name: one.data() for one in methods}},
        made_from=digests.of_json([model, digests.of_file(data.train), digests.of_file(data.validation)]),
        commit=made_at,
        reference=spec.reference,
        seconds=time.perf_counter() - started,
        rows=measurement.rows,
        **entries,
    )


def measure_starts(
    instrument: type[Instrument[R]], spec: Options, results: StudyResults, seeds: Sequence[int], out: Path
) -> Iterator[R]:
    """Measure the initial models of ``seeds`` of a study in turn, and write each record, `NAME-seedS.json`, to ``out``.

    UserError, before anything is computed, for wrong options, and where problems or an initial model are missing.
    """
    study, folder = results.study, results.folder
    spec.check(study)
    made = study.model.is_made
    needed = [folder.data.train, folder.data.validation]
    if made:
        needed += [folder.start(seed).record for seed in seeds]
    for path in needed:
        if not path.exists():
            raise UserError(f"{path}: is missing; run the study, or its stages `prepare` and `start-model`.")
    for seed in seeds:
        start = str(folder.start(seed).path) if made else study.model.start
        record = measure(instrument, spec, study, seed, start, folder.data)
        write_record(out / f"{instrument.name}-seed{seed}.json", record)
        yield record
