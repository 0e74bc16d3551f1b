"""One training run in its folder: start or resume it by its trainer, and write its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .. import digests
from ..files import check_free_space
from ..provenance import commit, hardware, versions
from ..results.layout import DataFolder, RunFolder
from ..results.schema import Environment, FinalMetrics, RunConfig, RunSummary, write_record
from ..study.fingerprint import start_seed
from ..study.runs import Arm
from ..tasks.golds import check_golds
from ..tasks.sources import prepare
from ..train.checkpoint import remove_old, run_lock
from ..train.ranks import on_rank_0, ranks
from ..train.start_model import ensure_start_model
from ..train.status_record import complete_status, recorded_status
from .folder import claim, has_ended, run_config
from .table import check_arm, trainer_versions

if TYPE_CHECKING:
    import torch

    from ..study import Study
    from ..train.stopping import Stop


def train_run(
    study: Study,
    arm: Arm,
    seed: int,
    run: RunFolder,
    start: str | None = None,
    data: DataFolder | None = None,
    stop: Stop | None = None,
) -> str:
    """Train one run in its folder, or resume it, and write its summary; returns the run's key.

    ``start`` and ``data`` are created in the folder if they are not given. A run that has ended is not changed; files
    of a run with other settings are moved to a subfolder first. All ranks call this with the same arguments, and all of
    them must see the same folders.
    """
    arm.method(study).check()
    settings = arm.training(study)
    check_arm(study, arm)
    commit()  # of the source that was imported: it may change while the run is trained
    on_rank_0(lambda: check_free_space(run.path))
    with run_lock(run.path):
        config, start, data, ended = on_rank_0(lambda: prepare_run(study, arm, seed, run, start, data))
        if ended:  # each checkpoint is three times as large as its model in float32
            on_rank_0(lambda: complete_status(run))
            on_rank_0(lambda: remove_old(run.checkpoints, 0))
            return config.key

        from ..model.precision import resolve_compute

        train = trainer_of(settings.trainer)
        with recorded_status(run, config.key):
            final = train(study, arm, seed, start=start, data=data, run=run, stop=stop)
            on_rank_0(lambda: _summarise(run, config, final, resolve_compute(settings.compute, study.model.dtype)))
        on_rank_0(lambda: remove_old(run.checkpoints, 0))
    return config.key


class Train(Protocol):
    """A trainer: trains a run from its newest checkpoint, if there is one, to its final model.

    The caller holds the lock of the run's folder. After each step ``stop`` is asked; to stop, the run is saved and
    `Stopped` is raised. All ranks of a process group call this with the same arguments.
    """

    def __call__(
        self, study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None
    ) -> FinalMetrics:
        """Train ``arm`` of ``study`` from the model in ``start``, with records and checkpoints in ``run``."""
        ...


def trainer_of(name: str) -> Train:
    """The trainer that `training.trainer` names."""
    if name == "trl":
        from .trl import train
    elif name == "verl":
        from .verl import train
    else:
        from ..train.loop import train
    return train


def prepare_run(
    study: Study, arm: Arm, seed: int, run: RunFolder, start: str | None, data: DataFolder | None
) -> tuple[RunConfig, str, DataFolder, bool]:
    """Make data and initial model unless they are given, and write the record of the run.

    Returns (record of the run, folder or hub name of the initial model, data, whether the run has ended).
    """
    if data is None:
        data = run.data
        prepare(study, data)
        check_golds([data.train, data.validation], study.grader)
    if start is None:
        start = study.model.start
        if start == "tiny":
            ensure_start_model(study, start_seed(study, seed), data, run.start)
            start = str(run.start.path)
    config = run_config(study, arm, seed, start, data)
    claim(run, config)
    ended = has_ended(run, config)
    if not ended:
        run.summary.unlink(missing_ok=True)  # a run with a summary has ended, and this one is trained
        write_record(run.config, config)
    return config, start, data, ended


def _summarise(run: RunFolder, config: RunConfig, final: FinalMetrics, compute: torch.dtype) -> None:
    environment = Environment(
        versions=versions() | trainer_versions(config.training["trainer"]),
        commit=commit(),
        hardware=hardware(),
        ranks=ranks()[1],
        compute=str(compute).removeprefix("torch."),
        engine=config.training["trainer"],
    )
    summary = RunSummary(
        **config.model_dump(), final=final, model_digest=digests.of_model(run.model), environment=environment
    )
    write_record(run.summary, summary)
