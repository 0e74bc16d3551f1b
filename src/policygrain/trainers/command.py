"""A command of your own as the trainer of a run: it is started and watched, and its log and model are read.

In `training.command`, `logs.file` and `model`, names in braces are replaced (docs/your-script.md).
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .. import digests
from ..analysis.run_logs import steps_of_log
from ..data.prompts import PromptRenderer
from ..errors import UserError, did_you_mean
from ..files import atomic_text, model_folder
from ..model.loading import load_tokenizer
from ..objective import Method
from ..paths import DataFolder, RunFolder
from ..records import FinalMetrics
from ..results import run_config, run_timings
from ..study.dependencies import CODE
from ..study.dependencies import settings as settings_of
from ..study.runs import Arm, different_parts, run_matrix
from ..study.schema import Study, Training
from ..text import flat, some
from ..train.checkpoint import line
from ..train.stopping import Stop
from .launch import run_program

WATCH_SECONDS = 5.0  # between two looks at the log
NOWHERE = DataFolder(Path()), RunFolder(Path())  # in place of the folders of a run that is only checked
OWN = ("trainer", "command", "logs.file", "logs.format", "logs.step", "metrics", "model")  # keys under `training`
COUNTED = ("steps", "validate_every")  # what the log is checked with
NAMES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")  # a name in braces, and other braces


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """As `train.loop.train`; the command resumes by itself, if it is told to or finds what it has saved."""
    settings, record = arm.training, run_config(run)
    values = placeholders(study, arm, seed, start, data, run)
    text = str(settings.command)
    key = digests.of_json([filled(text, values), record.settings.get(CODE), record.inputs.model_dump()])
    take_back(run, key)
    log = Log(settings, run, filled(settings.logs.file, values))  # type: ignore[union-attr]
    if not (run.trained.exists() and run.trained.read_text() == key):
        command = filled(text, values | {"resume": "--resume" if run.out.exists() else ""}, quoted=True)
        run.out.mkdir(exist_ok=True)
        print(f"policygrain: {command}", flush=True)
        shell = ["bash", "-eo", "pipefail", "-c", command]
        resumes = "the same command continues it." if "{resume}" in text else "it can be started again."
        run_program("the command", shell, Path.cwd(), run.output, {}, stop, lambda: resumes, log.watch, True)
        atomic_text(run.trained, key)
    try:
        rows = log.rows(log.read(), ended=True)
        log.write(rows)
        if settings.model is not None:
            take_model(study, Path(filled(settings.model, values)), run)
    except UserError as error:
        raise UserError(f"{error} The command is not started again, unless you remove {run.trained}.") from error
    last = rows[-1]
    return FinalMetrics(
        validation_accuracy=last["validation_accuracy"],
        validation_length=last.get("validation_length", math.nan),
        steps=settings.steps,
        updates=settings.steps,
        tokens=round(last["total_tokens"]) if "total_tokens" in last else None,
        samples=round(last["total_samples"]) if "total_samples" in last else None,
        seconds=log.seconds,
    )


def take_back(run: RunFolder, key: str) -> None:
    """Take back what the same command wrote before a change of settings that it does not read, such as `metrics`."""
    for trained in run.path.glob(f"superseded-*/{run.trained.name}"):
        if not run.out.exists() and trained.read_text() == key:
            for path in (run.out, run.output, run.timings, run.trained):
                if (moved := trained.parent / path.name).exists():
                    moved.rename(path)


def take_model(study: Study, model: Path, run: RunFolder) -> None:
    """Copy the model that the command wrote to the run. UserError if it cannot be opened, or lacks a chat template."""
    files = {"config.json": "config.json", "weights (*.safetensors)": "*.safetensors", "tokenizer": "tokenizer*"}
    if missing := [what for what, pattern in files.items() if not any(model.glob(pattern))]:
        raise UserError(
            f"training.model: the command ended, and {model} has no {missing[0]}. Save model and tokenizer there with "
            "`save_pretrained`, adapters merged."
        )
    for weights in model.glob("*.safetensors"):
        try:
            safe_open(weights, "pt")  # reads where each tensor is, and that the file is complete
        except (OSError, SafetensorError) as error:
            raise UserError(f"training.model: {weights} cannot be read as weights ({error}).") from error
    try:
        PromptRenderer(load_tokenizer(str(model)), study.prompt).ids("")
    except UserError as error:
        raise UserError(f"training.model: {error}") from error
    with model_folder(run.model, again="it starts the command again") as into:
        shutil.copytree(model, into)


class Log:
    """The log of a command, which becomes `metrics.jsonl` and `timings.jsonl` of its run."""

    def __init__(self, settings: Training, run: RunFolder, file: str) -> None:
        self.settings, self.run, self.file = settings, run, file
        self.timings = run_timings(run) if run.timings.exists() else []
        self.next_look = time.monotonic() + WATCH_SECONDS
        self.began = time.monotonic() - (self.timings[-1]["total_seconds"] if self.timings else 0.0)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def watch(self) -> None:
        """Write the steps that are logged so far, so that MLflow shows them. UserError if they cannot be used."""
        looked = time.monotonic()
        if looked < self.next_look:
            return
        try:
            logged = self.read()
        except UserError:  # nothing is logged yet, or a file is half written
            logged = {}
        self.next_look = time.monotonic() + max(WATCH_SECONDS, 20 * (time.monotonic() - looked))
        if logged:
            self.write(self.rows(logged, ended=False)[:-1])  # more may be logged of the last step

    def write(self, rows: list[dict[str, Any]]) -> None:
        now = {"time": time.time(), "total_seconds": self.seconds}
        self.timings += [{"step": step, **now} for step in range(len(self.timings), len(rows))]
        atomic_text(self.run.metrics, "".join(map(line, rows)))
        atomic_text(self.run.timings, "".join(map(line, self.timings)))

    def read(self) -> dict[int, dict[str, float]]:
        logs = self.settings.logs
        return steps_of_log(Path(self.file), logs.format, logs.step)  # type: ignore[union-attr]

    def rows(self, logged: Mapping[int, Mapping[str, float]], ended: bool) -> list[dict[str, Any]]:
        """A row per step from 0. UserError if the log lacks a metric, or ends at another step than the study."""
        settings, steps = self.settings, self.settings.steps
        by_step: dict[int, dict[str, float]] = {}
        for step, numbers in logged.items():
            by_step[step] = {ours: numbers[theirs] for ours, theirs in settings.metrics.items() if theirs in numbers}
        last = max((step for step, row in by_step.items() if row or not ended), default=0)
        wanted = [*range(0, min(last, steps - 1), settings.validate_every), *([steps] if ended else [])]
        lacks = [str(step) for step in wanted if "validation_accuracy" not in by_step.get(step, {})]
        names = {name for numbers in logged.values() for name in numbers}
        for ours, theirs in settings.metrics.items() if ended or (lacks and 0 in logged) else ():
            if theirs not in names:
                raise UserError(f"training.metrics.{ours}: {self.file} has no {theirs!r}.{did_you_mean(theirs, names)}")
        if min(by_step) < 0 or last > steps or (ended and last < steps):
            raise UserError(
                f"{self.file}: has the steps {min(by_step)} to {last}, and training.steps is {steps}. Runs are "
                "compared after equal steps: set training.steps to the last step that the log counts."
            )
        name = settings.metrics["validation_accuracy"]
        if lacks:
            raise UserError(
                f"{self.file}: has no {name} at step {some(lacks)}. It is needed before the first step (TRL: "
                f"eval_on_start), every training.validate_every ({settings.validate_every}) steps and after the last."
            )
        for step, row in by_step.items():
            if not 0 <= (share := row.get("validation_accuracy", 0)) <= 1:
                raise UserError(f"{self.file}: {name} is {share:g} at step {step}; a share from 0 to 1 is needed.")
        rows = [{"step": step, "total_updates": min(step + 1, steps)} for step in range(last + 1)]
        return [row | by_step.get(step, {}) for step, row in enumerate(rows)]


def placeholders(study: Study, arm: Arm, seed: int, start: str, data: DataFolder, run: RunFolder) -> dict[str, str]:
    """What each name in braces stands for. Keys without a value, and lists, are not among them."""
    own = study.model_copy(update={"training": arm.training}).model_dump(mode="json", exclude={"methods"})
    training = {key: value for key, value in own["training"].items() if key not in OWN}
    known = {**flat(own), **training, **dict(arm.settings)}
    known |= {"method": arm.method_name, "arm": arm.name, "seed": seed, "resume": "", "start": start}
    paths = {"out": run.out, "train": data.train, "validation": data.validation}
    known |= {name: str(path.resolve()) for name, path in paths.items()}
    texts = {key: value for key, value in known.items() if isinstance(value, str | int | float)}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in texts.items()}


def filled(text: str, values: Mapping[str, str], quoted: bool = False, where: str = "training.command") -> str:
    """``text`` with values for the names in braces; ``quoted``: each is one word of the shell, an empty one none."""

    def value_of(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[1] is None:
            raise UserError(f"{where}: a single {found[0]}; write braces of the shell twice: ${{{{HOME}}}}.")
        if found[1] not in values:
            known = [key for key in values if "." not in key]
            raise UserError(
                f"{where}: nothing is called {{{found[1]}}}.{did_you_mean(found[1], known)} Braces of the shell are "
                "written twice: ${{HOME}}."
            )
        value = values[found[1]]
        return shlex.quote(value) if quoted and value else value

    return NAMES.sub(value_of, text)


def check(study: Study, arm: Arm) -> None:
    """UserError for placeholders, keys and methods that the command does not read, and files that runs would share."""
    settings = arm.training
    values = placeholders(study, arm, 0, study.model.start, *NOWHERE)
    command, file, model = str(settings.command), settings.logs.file, settings.model or "{out}"  # type: ignore[union-attr]
    for key, text in (("command", command), ("logs.file", file), ("model", model)):
        path = os.path.normpath(filled(text, values, where=f"training.{key}"))
        if key != "command" and not Path(path).is_relative_to(values["out"]):
            raise UserError(f"training.{key}: must be in {{out}}, so that each run has its own.")
    used = {found[1] for found in NAMES.finditer(command) if found[1]}
    if "out" not in used:
        raise UserError("training.command: must contain {out}, the folder of a run: no two runs write the same files.")
    for key, value in arm.settings:
        if key not in (*used, "trainer", *COUNTED):
            raise UserError(f"vary.{key}: {value} would change nothing: training.command has no {{{key}}}.")
    of_arm = study.model_copy(update={"training": settings})
    read = {"methods", "training.logs", *(f"training.{key}" for key in (*OWN, *COUNTED, *used)), *used}
    for key in sorted(settings_of(of_arm, "run").keys() - settings_of(study, "evaluation").keys() - read):
        name = key.removeprefix("training.")
        raise UserError(f"{key}: the command does not read it. Leave it out, or add {{{name}}} to training.command.")
    if (method := study.methods.get(arm.method_name)) is not None:
        try:
            plain = study.model_copy(update={"methods": {}}).method(method.name)  # the preset of this name
        except UserError:
            plain = Method(name=method.name)
        if parts := different_parts(method, plain):
            raise UserError(
                f"methods.{method.name}: the command does not read {parts[0]}; with trainer: command, a method is a "
                "name with a label. What differs belongs in the script, or in `vary` with a placeholder."
            )
    if study.model.is_made and "start" not in used:
        raise UserError(
            "model.start: the pipeline makes an initial model that the command does not read. Add {start} to "
            "training.command, or name the model that your script starts from."
        )
    if settings.model is None and arm.name in run_matrix(study).evaluated_arms:
        raise UserError("training.model: names no model, so set `evaluate: false` in each of the experiments.")


def check_distinct(study: Study) -> None:
    commands: dict[str, str] = {}
    matrix = run_matrix(study)
    for run in matrix.runs:
        arm = matrix.arms[run.arm]
        if arm.training.trainer == "command":
            values = placeholders(study, arm, run.seed, study.model.start, *NOWHERE)
            command = filled(str(arm.training.command), values, quoted=True)
            if (twin := commands.setdefault(command, run.name)) != run.name:
                raise UserError(
                    f"training.command: is the same for {twin} and {run.name}. Let it read {{method}}, {{seed}} and "
                    "what an experiment varies."
                )
