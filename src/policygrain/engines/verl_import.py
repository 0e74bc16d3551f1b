"""A run that verl trained, as a run of a study: its log, samples and final model (docs/integrations/verl.md)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import digests
from ..errors import UserError
from ..files import atomic_text
from ..results.layout import RunFolder, StudyFolder
from ..results.reader import run_summary
from ..results.schema import (
    Environment,
    ExportRecord,
    FinalMetrics,
    RunStatus,
    RunSummary,
    read_record,
    write_record,
)
from ..train.checkpoint import run_lock
from ..train.metrics_log import line
from ..train.model_folder import model_folder
from .folder import claim
from .verl_config import COMPUTE, RECORD, ROLLOUTS, VALIDATIONS
from .verl_log import Samples, graded_samples, metric_rows, read_log, timing_rows

EXPORT = "Write the folder again: `policygrain export verl`."


def import_run(
    folder: Path, results: StudyFolder, logs: Sequence[Path] = (), model: Path | None = None, hardware: str = ""
) -> tuple[RunFolder, list[str]]:
    """Write the run that was trained in an exported ``folder`` into ``results``.

    Returns the run's folder and notes for its readers, a clause each.

    ``logs``: verl's logs, in the order of its attempts (default: `metrics*.jsonl` in ``folder``). ``model``: the final
    model in Hugging Face's format (default: the last checkpoint's). UserError if the exported files were changed, if
    steps are missing, or if the final model is.
    """
    config = exported(folder).config
    logs = logs or logs_in(folder)
    read = read_run(folder, logs, model)
    run = results.run(config.arm, config.seed)
    if run.summary.exists() and (there := run_summary(run)).key == config.key and there.environment.engine != "verl":
        raise UserError(f"{run.path}: this run was trained here. Import the other one into another folder of results.")
    with run_lock(run.path):
        claim(run, config)
        for product in run.products:  # of an earlier import
            if product.is_dir():
                shutil.rmtree(product)
            else:
                product.unlink(missing_ok=True)
        write_record(run.config, config)
        read.write(run)
        ended = max(path.stat().st_mtime for path in logs)
        begun = ended - read.final.seconds
        write_record(run.status, RunStatus(key=config.key, status="FINISHED", started=begun, attempts=1, ended=ended))
        environment = Environment(
            versions={},
            commit="",
            hardware=hardware or "not recorded",
            compute=COMPUTE[config.training["compute"]],
            engine="verl",
        )
        summary = {**config.model_dump(), "final": read.final, "model_digest": digests.of_model(run.model)}
        write_record(run.summary, RunSummary(**summary, environment=environment))
    return run, read.notes


def logs_in(folder: Path) -> list[Path]:
    """The logs of all attempts in an exported folder, in their order."""
    return sorted(folder.glob("metrics*.jsonl"))


def final_model(folder: Path, steps: int) -> Path:
    """The model of the last checkpoint."""
    return folder / "checkpoints" / f"global_step_{steps}" / "actor" / "huggingface"


class ReadRun(NamedTuple):
    """A run of verl in the records of a study."""

    rows: list[dict[str, Any]]
    timings: list[dict[str, Any]]
    samples: dict[int, Samples]
    model: Path
    final: FinalMetrics
    notes: list[str]  # for its readers, a clause each

    def write(self, run: RunFolder) -> None:
        """Write metrics, timings, rollouts and the final model into the run's folder."""
        with model_folder(run.model, again="it reads verl's run again") as into:
            shutil.copytree(self.model, into)
        for step, graded in self.samples.items():
            atomic_text(run.rollouts(step), "".join(row.model_dump_json() + "\n" for row in graded.rows))
        atomic_text(run.metrics, "".join(map(line, self.rows)))
        atomic_text(run.timings, "".join(map(line, self.timings)))


def read_run(folder: Path, logs: Sequence[Path], model: Path | None = None) -> ReadRun:
    """The run that verl has trained in an exported ``folder``. UserError if steps or the final model are missing."""
    record = exported(folder)
    config, steps = record.config, int(record.config.training["steps"])
    log = read_log(logs, steps, folder)
    model = model or final_model(folder, steps)
    _check_model(model, config.inputs.start_model)
    samples = {step - 1: graded for step, graded in graded_samples(folder / ROLLOUTS, record, model) if step <= steps}
    validated = dict(graded_samples(folder / VALIDATIONS, record, model))
    dynamic = bool(config.method["sampler"].get("dynamic"))
    rows = metric_rows(log, config.training, dynamic, samples, validated)
    timings = timing_rows(log)
    return ReadRun(rows, timings, samples, model, _final(rows, timings), _notes(samples, validated, dynamic))


def _final(rows: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]]) -> FinalMetrics:
    last = rows[-1]
    if "validation_accuracy" not in last:
        raise UserError("verl's log has no validation after the last step (trainer.test_freq of the exported arm).")
    return FinalMetrics(
        validation_accuracy=last["validation_accuracy"],
        validation_length=last["validation_length"],
        steps=len(rows) - 1,
        updates=last["total_updates"],
        tokens=last["total_tokens"],
        samples=last["total_samples"],
        seconds=timings[-1]["total_seconds"],
    )


def exported(folder: Path) -> ExportRecord:
    """The record of an exported folder. UserError if its files were changed since."""
    if not (folder / RECORD).exists():
        raise UserError(f"{folder}: no {RECORD} here, so it was not written by `policygrain export verl`.")
    record = read_record(ExportRecord, folder / RECORD, EXPORT)
    for name, digest in record.files.items():
        if not (folder / name).exists() or digests.of_file(folder / name) != digest:
            raise UserError(
                f"{folder / name}: was changed after the export, so this is another run than arm {record.config.arm!r} "
                f"of the study. Change the study, and export and train the arm again."
            )
    return record


def _check_model(model: Path, start: str) -> None:
    if not any(model.glob("*.safetensors")) or not (model / "config.json").exists():
        raise UserError(
            f"{model}: no model in Hugging Face's format. Where verl saved its shards alone: python -m "
            "verl.model_merger merge --backend fsdp --local_dir …/global_step_N/actor --target_dir FOLDER, and name "
            "FOLDER by --model."
        )
    if digests.of_model(model) == start:
        raise UserError(f"{model}: this is the initial model of the run, not the model after training.")


def _notes(samples: Mapping[int, Samples], validated: Mapping[int, Samples], dynamic: bool) -> list[str]:
    notes = []
    if not samples:
        notes.append("verl saved no rollouts (trainer.rollout_data_dir): accuracies of samples are verl's mean reward")
    graded = [*samples.values(), *validated.values()]
    if differ := sum(step_samples.disagreements for step_samples in graded):
        count = sum(len(step_samples.rows) for step_samples in graded)
        notes.append(
            f"verl's reward and this grader disagree on {differ} of {count} responses; the records have the latter"
        )
    if dynamic:
        notes.append(
            "other groups replaced those that it dropped, so it is not paired with a run that was trained here"
        )
        notes.append(
            "verl logs neither accuracy nor length of the groups that dynamic sampling drops: `sampled_accuracy` is "
            "empty, and `total_tokens` estimated"
        )
    return notes
