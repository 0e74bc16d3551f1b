"""All paths in the results of a study. File names of results occur only here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .study.runs import START

Place = TypeVar("Place")


class Inside(Generic[Place]):
    """A path, or a folder with paths of its own, that every folder of a class has under one name."""

    def __init__(self, name: str, kind: Callable[[Path], Place]) -> None:
        self.name, self.kind = name, kind

    def __get__(self, folder: Folder, owner: object) -> Place:
        return self.kind(folder.path / self.name)


@dataclass(frozen=True)
class Folder:
    """A folder in the results."""

    path: Path


class DataFolder(Folder):
    """Prepared problems, `data/`."""

    train = Inside("train.jsonl", Path)
    validation = Inside("validation.jsonl", Path)
    contamination = Inside("contamination.json", Path)  # benchmark problems that are among the training prompts

    def benchmark(self, name: str) -> Path:
        return self.path / "benchmarks" / f"{name}.jsonl"


class EvaluationFolder(Folder):
    """The evaluation of one model."""

    record = Inside("records.json", Path)  # protocol and scores
    samples = Inside("samples.parquet", Path)  # every response with its outcome

    def responses(self, key: str, first: int) -> Path:
        """Sampled responses that are not graded yet, of which ``first`` is one."""
        return self.path / f"sampled-{key}-{first}.json"

    def sampled(self, key: str = "*") -> list[Path]:
        return sorted(self.path.glob(f"sampled-{key}-*.json"))


class StartFolder(Folder):
    """An initial model that the pipeline builds, `start/seedS/`."""

    record = Inside("start.json", Path)  # settings and digest of the model; written last
    copy_of_record = property(lambda folder: folder.path.with_suffix(".json"))  # beside the folder
    evaluation = Inside("evaluation", EvaluationFolder)


class RunFolder(Folder):
    """One training run, `runs/ARM/seedS/`."""

    config = Inside("run.json", Path)  # key and settings of the run that this folder belongs to
    ended = Inside("ended.json", Path)  # the summary of a run that has ended
    summary = Inside("summary.json", Path)  # a copy of `ended`, which Snakemake removes before it starts a job again
    metrics = Inside("metrics.jsonl", Path)  # a line per step; determined by the seed
    timings = Inside("timings.jsonl", Path)  # a line per step; not reproducible
    checkpoints = Inside("checkpoints", Path)
    verl = Inside("verl", Path)  # where verl trains the run: its configuration, logs, rollouts and checkpoints
    out = Inside("out", Path)  # what a command that trains the run writes
    output = Inside("command.log", Path)  # and prints
    trained = Inside("trained.txt", Path)  # the digest of the command that has ended there, and of what it reads
    model = Inside("model", Path)  # the final model with its tokenizer
    evaluation = Inside("evaluation", EvaluationFolder)  # of the final model
    lock = Inside("lock", Path)  # locked by the process that trains in this folder

    def superseded(self, key: str) -> Path:
        """The folder for the files of the run with this key: the first that has none of those that are here."""
        here = [product.name for product in self.products if product.exists()]
        folders = (self.path / f"superseded-{key}-{number}" for number in itertools.count(1))
        return next(folder for folder in folders if not any((folder / name).exists() for name in here))

    @property
    def products(self) -> tuple[Path, ...]:
        """All files and folders of a run that are moved when another run takes the folder; `config` is last."""
        files = (self.summary, self.ended, self.metrics, self.timings, self.output, self.trained)
        folders = (self.checkpoints, self.verl, self.out, self.model)
        return (*files, *folders, self.evaluation.path, self.config)


class StudyFolder(Folder):
    """A study's results, `results/STUDY/`."""

    study = Inside("study.yaml", Path)  # the resolved study file
    protocol = Inside("protocol.json", Path)  # how `evaluate-model` evaluated the models of this folder
    data = Inside("data", DataFolder)
    report = Inside("report.html", Path)
    tracking = Inside("mlflow.json", Path)  # the study's experiment and runs in MLflow
    workflow_lock = Inside("workflow.lock", Path)  # locked by the workflow of this study; its text names the process

    def settings(self, name: str) -> Path:
        """The settings of a stage, of an arm (`arms/ARM`) or of a figure (`figures/NAME`)."""
        return self.path / "settings" / f"{name}.json"

    def start(self, seed: int | str) -> StartFolder:
        return StartFolder(self.path / "start" / f"seed{seed}")

    def evaluated(self, arm: str) -> Path:
        """The record of the evaluation of an arm's models, or of the initial models (`START`)."""
        return self.path / "evaluation" / f"{arm}.json"

    def run(self, arm: str, seed: int | str) -> RunFolder:
        return RunFolder(self.path / "runs" / arm / f"seed{seed}")

    def evaluation(self, model: str) -> EvaluationFolder:
        place = self.path / model if model.startswith(f"{START}/") else self.path / "runs" / model
        return EvaluationFolder(place / "evaluation")

    def evaluations(self) -> Iterator[tuple[str, EvaluationFolder]]:
        """(model, folder) of all evaluated models, initial models first."""
        for models in (START, "runs/*"):
            for record in sorted(self.path.glob(f"{models}/seed*/evaluation/records.json")):
                if record.parts[-3].removeprefix("seed").isdecimal():
                    yield "/".join(record.parts[-4:-2]), EvaluationFolder(record.parent)

    def figure(self, name: str, suffix: str = "") -> Path:
        return self.path / "figures" / f"{name}{suffix}"

    def table(self, name: str, suffix: str = "") -> Path:
        return self.path / "tables" / f"{name}{suffix}"
