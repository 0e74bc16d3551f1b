"""All paths in the results of a study. File names of results occur only here and in `folders.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..study.runs import START
from .folders import DataFolder, EvaluationFolder, RunFolder, StartFolder

__all__ = ["START", "DataFolder", "EvaluationFolder", "RunFolder", "StartFolder", "StudyFolder", "study_of"]


@dataclass(frozen=True)
class StudyFolder:
    """A study's results, `results/STUDY/`."""

    path: Path

    @property
    def study(self) -> Path:
        """The resolved study file."""
        return self.path / "study.yaml"

    @property
    def data(self) -> DataFolder:
        """Prepared problems."""
        return DataFolder(self.path / "data")

    def start(self, seed: int | str) -> StartFolder:
        """An initial model."""
        return StartFolder(self.path / "start" / f"seed{seed}")

    def run(self, arm: str, seed: int | str) -> RunFolder:
        """A training run."""
        return RunFolder(self.path / "runs" / arm / f"seed{seed}")

    def runs(self) -> Iterator[tuple[str, int]]:
        """(arm, seed) of all run folders."""
        for folder in sorted(self.path.glob("runs/*/seed*")):
            if (seed := folder.name.removeprefix("seed")).isdecimal():
                yield folder.parent.name, int(seed)

    def started_runs(self) -> list[RunFolder]:
        """The folders of all runs whose training has started."""
        return [RunFolder(status.parent) for status in sorted(self.path.glob("runs/*/*/status.json"))]

    def evaluation(self, model: str) -> EvaluationFolder:
        """The evaluation of a model named `ARM/seedS` or `start/seedS`."""
        place = self.path / model if model.startswith(f"{START}/") else self.path / "runs" / model
        return EvaluationFolder(place / "evaluation")

    def evaluations(self) -> Iterator[tuple[str, EvaluationFolder]]:
        """(model, folder) of all evaluated models, initial models first."""
        for record in sorted(self.path.glob(f"{START}/*/evaluation/records.json")):
            yield f"{START}/{record.parts[-3]}", EvaluationFolder(record.parent)
        for record in sorted(self.path.glob("runs/*/*/evaluation/records.json")):
            yield "/".join(record.parts[-4:-2]), EvaluationFolder(record.parent)

    def estimators(self, seed: int | str) -> Path:
        """The gradient estimators, measured on the initial model of a seed."""
        return self.path / "estimators" / f"seed{seed}.json"

    def rounds(self, seed: int | str) -> Path:
        """One round by each method, from the initial model of a seed."""
        return self.path / "rounds" / f"seed{seed}.json"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders that contain only small files: data, measurements, figures, tables, marker files of jobs."""
        names = ("estimators", "rounds", "figures", "tables", "done")
        return (self.data.path, *(self.path / name for name in names))

    def figure(self, name: str, suffix: str = "") -> Path:
        """A file of a figure; without ``suffix`` the common stem of its files."""
        return self.path / "figures" / f"{name}{suffix}"

    def table(self, name: str, suffix: str = "") -> Path:
        """A file of a table; without ``suffix`` the common stem of its files."""
        return self.path / "tables" / f"{name}{suffix}"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    @property
    def tracking(self) -> Path:
        """The record of the study's experiment and runs in MLflow."""
        return self.path / "mlflow.json"

    @property
    def tracking_lock(self) -> Path:
        """The lock file of the process that writes to MLflow."""
        return self.path / "mlflow.lock"

    @property
    def tracking_log(self) -> Path:
        """Messages of the process that follows runs in MLflow."""
        return self.path / "mlflow.log"

    @property
    def server_log(self) -> Path:
        """Messages of the MLflow server that `policygrain ui` starts."""
        return self.path / "mlflow-server.log"

    @property
    def workflow_lock(self) -> Path:
        """The lock file of the workflow that runs this study; its text names the process."""
        return self.path / "workflow.lock"

    @property
    def jobs_lock(self) -> Path:
        """The lock file that every running job of this study holds."""
        return self.path / "jobs.lock"

    def log(self, rule: str, name: str) -> Path:
        """The log of a job."""
        return self.path / "logs" / rule / f"{name}.log"

    def done(self, rule: str, name: str, fingerprint: str) -> Path:
        """The marker file of a finished job, with the fingerprint of everything that its result depends on."""
        return self.path / "done" / rule / f"{name}-{fingerprint}.json"


def study_of(path: Path) -> StudyFolder | None:
    """The study folder that contains ``path``, such as a run or a table; None if there is none."""
    return next((StudyFolder(p) for p in path.resolve().parents if (p / "study.yaml").exists()), None)
