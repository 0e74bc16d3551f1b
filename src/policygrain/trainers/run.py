"""One training run in its folder: prepares the folder, starts or resumes training, and writes the summary."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from .. import digests
from ..errors import UserError
from ..files import check_free_space
from ..paths import DataFolder, RunFolder
from ..provenance import commit, hardware, versions
from ..records import Environment, FinalMetrics, RunConfig, RunInputs, RunSummary, read_record, write_record
from ..results import TRAIN, run_metrics, run_summary
from ..study.dependencies import run_settings
from ..study.runs import Arm
from ..study.schema import Study
from ..train.checkpoint import remove_old, run_lock
from ..train.ranks import is_rank_0, on_rank_0, ranks
from ..train.start_model import check_start_model
from ..train.stopping import Stop
from .check import TRAINERS, check_arm


def train_run(
    study: Study,
    arm: Arm,
    seed: int,
    run: RunFolder,
    start: str,
    data: DataFolder,
    stop: Stop | None = None,
    tracked: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> str:
    """Train one run in its folder, or resume it, and write its summary; returns the run's key.

    ``start``: folder or hub name of the initial model. All ranks call this with the same arguments, and must see the
    same folders. ``tracked`` opens the context in which rank 0 trains.
    """
    arm.method.check()
    check_arm(study, arm)
    commit()  # cached here, because the source may change while the run is trained
    on_rank_0(lambda: check_free_space(run.path))
    with run_lock(run.path):
        config, ended = on_rank_0(lambda: begin(study, arm, seed, run, start, data))
        if not ended:
            train = import_module(TRAINERS[arm.training.trainer], __package__).train
            with tracked() if is_rank_0() else nullcontext():
                final = train(study, arm, seed, start=start, data=data, run=run, stop=stop)
                on_rank_0(lambda: _summarise(study, run, config, final))
        on_rank_0(lambda: remove_old(run.checkpoints, 0))  # each is three times as large as its model in float32
    return config.key


def begin(study: Study, arm: Arm, seed: int, run: RunFolder, start: str, data: DataFolder) -> tuple[RunConfig, bool]:
    """Write the record of the run, unless it has ended; returns the record, and whether it has."""
    config = run_config(study, arm, seed, start, data)
    claim(run, config)
    if run.ended.exists():
        summary = read_record(RunSummary, run.ended, TRAIN)
        if (summary.key, summary.model_digest) == (config.key, _digest_of_model(run)):
            if not run.summary.exists():
                write_record(run.summary, summary)
            run_metrics(run)  # UserError if they are damaged, because they would be lost
            return config, True
    run.ended.unlink(missing_ok=True)
    run.summary.unlink(missing_ok=True)  # a summary means that the run has ended
    write_record(run.config, config)
    return config, False


def run_config(study: Study, arm: Arm, seed: int, start: str, data: DataFolder) -> RunConfig:
    """The record of everything that the result of a run depends on; its key is the digest of these inputs."""
    settings = run_settings(study, arm, seed)
    inputs = RunInputs(
        start_model=check_start_model(Path(start), study.model.revision),
        train=digests.of_file(data.train),
        validation=digests.of_file(data.validation),
    )
    return RunConfig(
        key=digests.of_json([arm.name, settings, inputs.model_dump()]),
        arm=arm.name,
        seed=seed,
        settings=settings,
        method=arm.method.data(),
        training=arm.training.model_dump(mode="json"),
        inputs=inputs,
    )


def claim(run: RunFolder, config: RunConfig) -> None:
    """Move the files of another run, if the folder contains one, to `superseded-KEY-N`.

    `run.json`, by which they are another run's, is the last: after a kill in between, the next call moves the rest.
    """
    try:
        previous = str(json.loads(run.config.read_bytes())["key"])
    except (OSError, ValueError, KeyError, TypeError):  # it cannot be read
        previous = None
    products = [product for product in run.products if product.exists()]
    if previous == config.key or not products:
        return
    aside = run.superseded(previous or "unknown")
    aside.mkdir(exist_ok=True)
    for product in products:
        product.rename(aside / product.name)
    print(f"{run.path}: contained a run with other settings, which was moved to {aside}.", file=sys.stderr)


def _summarise(study: Study, run: RunFolder, config: RunConfig, final: FinalMetrics) -> None:
    from ..model.device import resolve_compute

    trainer = config.training["trainer"]
    compute = resolve_compute(config.training["compute"], study.model.dtype)
    packages = ("trl", "accelerate") if trainer == "trl" else ()
    environment = Environment(
        versions=versions() | {name: version(name) for name in packages},
        commit=commit(),
        hardware=hardware(),
        ranks=ranks()[1],
        compute="unknown" if trainer == "command" else str(compute).removeprefix("torch."),
        engine=trainer,
    )
    digest = _digest_of_model(run)
    summary = RunSummary(**config.model_dump(), final=final, model_digest=digest, environment=environment)
    write_record(run.ended, summary)
    write_record(run.summary, summary)


def _digest_of_model(run: RunFolder) -> str:
    return digests.of_model(run.model) if run.model.is_dir() else ""


def check_final_model(run: RunFolder) -> str:
    """The digest of the final model of a run. UserError if it differs from the digest in the summary."""
    digest = digests.of_model(run.model)
    if run.summary.exists() and run_summary(run).model_digest != digest:
        raise UserError(
            f"{run.model}: its files are not those that {run.summary.name} names: one is changed or missing. Remove "
            f"{run.summary} and train the run again."
        )
    return digest
