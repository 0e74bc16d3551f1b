"""An instrument measures the initial models of a study: what estimators and rounds have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from .. import digests
from ..data.golds import check_golds
from ..data.sources import prepare
from ..errors import UserError
from ..job_state import begin, write_done
from ..measurements import EstimatorsRecord, RoundsRecord
from ..objective import Method, method
from ..paths import DataFolder, StudyFolder
from ..provenance import commit
from ..records import read_record, write_record
from ..study.checks import check_instruments, check_prompts
from ..study.fingerprint import Fingerprints, code_digests
from ..train.start_model import build_start_model, check_start_model
from .measured_policy import MeasuredPolicy, open_measured_policy, plain

if TYPE_CHECKING:
    from ..study import Study

R = TypeVar("R", EstimatorsRecord, RoundsRecord)


class Instrument(ABC, Generic[R]):
    """A measurement of an initial model at each stage of its training by a reference method."""

    name: ClassVar[Literal["estimators", "rounds"]]  # the section of the study that describes it
    record: type[R]

    def __init__(self, spec: Any, methods: list[Method]) -> None:
        """``spec``: the section of the study."""
        self.spec, self.methods, self.rows = spec, methods, list[Any]()

    @abstractmethod
    def stage(self, measured: MeasuredPolicy) -> None:
        """Measure the methods on the policy, and restore the policy."""

    @abstractmethod
    def entries(self, measured: MeasuredPolicy) -> dict[str, Any]:
        """The fields of the record that only this instrument has."""


def measure(instrument: type[Instrument[R]], study: Study, seed: int, start: str, data: DataFolder, out: Path) -> R:
    """Measure the initial model ``start`` of ``seed``, and write the record to ``out``.

    UserError, before anything is computed, if the measurement needs more prompts than there are.
    """
    name = instrument.name
    spec = getattr(study, name)
    methods = [plain(method(name, study.methods)) for name in spec.methods]
    for chosen in methods:
        chosen.check()
    started, made_at = time.perf_counter(), commit()
    measurement = instrument(spec, methods)
    with open_measured_policy(study, spec.reference, seed, start, data) as measured:
        check_prompts(name, spec, len(measured.train_problems))
        for steps in sorted(spec.steps):
            measured.train_until(steps)
            measurement.stage(measured)
        entries = measurement.entries(measured)
    record = instrument.record(
        seed=seed,
        settings=Fingerprints(study, code_digests(study)).instrument_settings(name, seed),
        made_from=made_from(start, data, study.model.revision),
        commit=made_at,
        reference=spec.reference,
        seconds=time.perf_counter() - started,
        rows=measurement.rows,
        **entries,
    )
    write_record(out, record)
    return record


def measure_starts(
    instrument: type[Instrument[R]],
    study: Study,
    seeds: Sequence[int],
    folder: StudyFolder,
    done: Path | None = None,
) -> Iterator[R]:
    """Measure the initial models of ``seeds``, one after the other, and write their records into the study's results.

    Records that are up to date are kept. Problems and tiny initial models are made if they are missing. UserError,
    before anything is computed, for a study without the instrument's section.
    """
    name, data = instrument.name, folder.data
    if getattr(study, name) is None:
        example = f"{name}: {{reference: NAME, methods: [NAME, ...]}}"
        raise UserError(f"{name}: this study has no such section. Add `{example}`.")
    check_instruments(study)
    files = {seed: getattr(folder, name)(seed) for seed in seeds}
    if done:
        begin(done, [f"{name}/seed{seed}" for seed in seeds])
    if not data.train.exists():
        prepare(study, data)
        check_golds([data.train, data.validation], study.grader)
    for seed, path in files.items():
        start = folder.start(seed)
        if study.model.start == "tiny" and not start.record.exists():
            build_start_model(study, seed, data, start)
        model = str(start.path) if study.model.start == "tiny" else study.model.start
        record = _record_of(instrument, study, seed, path, model, data)
        yield record or measure(instrument, study, seed, model, data, path)
    if done:
        write_done(done, {f"{name}/seed{seed}": digests.of_file(path) for seed, path in files.items()})


def _record_of(
    instrument: type[Instrument[R]], study: Study, seed: int, path: Path, start: str, data: DataFolder
) -> R | None:
    """The record in ``path`` if it was made with these settings, initial model and problems, else None."""
    try:
        record = read_record(instrument.record, path, "")
    except UserError:  # there is none, or it cannot be read; it is measured again
        return None
    same = record.made_from == made_from(start, data, study.model.revision)
    made_with = Fingerprints(study, code_digests(study)).instrument_settings(instrument.name, seed)
    return record if same and record.settings == made_with else None


def made_from(start: str, data: DataFolder, revision: str | None = None) -> str:
    """Digest of an initial model and the problems; of a model on a hub, its commit."""
    model = check_start_model(Path(start), revision)
    return digests.of_json([model, digests.of_file(data.train), digests.of_file(data.validation)])
