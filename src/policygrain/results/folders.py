"""Folders in the results of a study: problems, models, evaluations, runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataFolder:
    """Prepared problems, `data/`."""

    path: Path

    @property
    def train(self) -> Path:
        """Training problems."""
        return self.path / "train.jsonl"

    @property
    def validation(self) -> Path:
        """Validation problems."""
        return self.path / "validation.jsonl"

    def benchmark(self, name: str) -> Path:
        """Problems of one benchmark."""
        return self.path / "benchmarks" / f"{name}.jsonl"

    @property
    def contamination(self) -> Path:
        """Benchmark problems that are among the training prompts."""
        return self.path / "contamination.json"

    @property
    def sources(self) -> Path:
        """Digests of the files that the problems were read from."""
        return self.path / "sources.json"


@dataclass(frozen=True)
class EvaluationFolder:
    """The evaluation of one model."""

    path: Path

    @property
    def record(self) -> Path:
        """Protocol and scores."""
        return self.path / "records.json"

    def samples(self, benchmark: str) -> Path:
        """Every response to a benchmark with its outcome."""
        return self.path / f"{benchmark}.jsonl"

    def greedy(self, benchmark: str) -> Path:
        """Every greedily decoded response to a benchmark with its outcome."""
        return self.path / f"{benchmark}.greedy.jsonl"

    def responses(self, key: str, part: int, parts: int) -> Path:
        """Sampled responses that are not graded yet; each process writes its own file."""
        return self.path / f"sampled-{key}-{part}of{parts}.jsonl"

    def all_responses(self, key: str = "*") -> list[Path]:
        """The files with sampled responses of all processes."""
        return sorted(self.path.glob(f"sampled-{key}-*.jsonl"))


@dataclass(frozen=True)
class StartFolder:
    """An initial model that the pipeline builds, `start/seedS/`."""

    path: Path

    @property
    def record(self) -> Path:
        """The settings and digest of the model; written last."""
        return self.path / "start.json"


@dataclass(frozen=True)
class RunFolder:
    """One training run, `runs/ARM/seedS/`."""

    path: Path

    @property
    def config(self) -> Path:
        """Key and settings of the run that this folder belongs to."""
        return self.path / "run.json"

    @property
    def summary(self) -> Path:
        """The summary; written last, so a run with a summary has ended."""
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        """Metrics, a line per step; determined by the seed."""
        return self.path / "metrics.jsonl"

    @property
    def status(self) -> Path:
        """The status of the run (being trained, ended, failed or stopped), with times."""
        return self.path / "status.json"

    @property
    def timings(self) -> Path:
        """Timings, a line per step; not reproducible."""
        return self.path / "timings.jsonl"

    @property
    def mtp_heads(self) -> Path:
        """Losses and cost of warming up the prediction heads."""
        return self.path / "mtp_heads.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def verl(self) -> Path:
        """The folder in which verl trains the run: its configuration, logs, rollouts and checkpoints."""
        return self.path / "verl"

    @property
    def model(self) -> Path:
        """The final model with its tokenizer."""
        return self.path / "model"

    @property
    def evaluation(self) -> EvaluationFolder:
        """The final model's evaluation."""
        return EvaluationFolder(self.path / "evaluation")

    @property
    def failed_batch(self) -> Path:
        """The batch of the update that stopped the run with an error."""
        return self.path / "failed_batch.pt"

    @property
    def token_folder(self) -> Path:
        """Folder of token views."""
        return self.path / "tokens"

    def tokens(self, step: int) -> Path:
        """The effect of a step on each token of a few samples."""
        return self.token_folder / f"step{step:05d}.json"

    def token_steps(self) -> dict[int, Path]:
        """Step → token view, for steps that have one."""
        return _by_step(self.token_folder, "json")

    @property
    def rollout_folder(self) -> Path:
        """Folder of graded rollouts, of a run that another engine trained."""
        return self.path / "rollouts"

    def rollouts(self, step: int) -> Path:
        """The graded rollouts of a step."""
        return self.rollout_folder / f"step{step:05d}.jsonl"

    def rollout_steps(self) -> dict[int, Path]:
        """Step → graded rollouts, for steps that have them."""
        return _by_step(self.rollout_folder, "jsonl")

    @property
    def lock(self) -> Path:
        """The lock file of the process that trains in this folder."""
        return self.path / "lock"

    @property
    def data(self) -> DataFolder:
        """Problems that the run prepared itself, if none were given."""
        return DataFolder(self.path / "data")

    @property
    def start(self) -> StartFolder:
        """The initial model that the run built itself, if none was given."""
        return StartFolder(self.path / "start")

    @property
    def superseding(self) -> Path:
        """Exists while files of an earlier run are being moved; contains the name of the target folder."""
        return self.path / "superseding.json"

    def superseded(self, key: str) -> Path:
        """A folder that does not exist yet, for the files of the run with this key."""
        number = 1
        while (folder := self.path / f"superseded-{key}-{number}").exists():
            number += 1
        return folder

    @property
    def products(self) -> tuple[Path, ...]:
        """All files and folders of a run that are moved when another run takes the folder; `config` is last."""
        return (
            self.summary,
            self.status,
            self.metrics,
            self.timings,
            self.mtp_heads,
            self.checkpoints,
            self.verl,
            self.token_folder,
            self.rollout_folder,
            self.model,
            self.evaluation.path,
            self.failed_batch,
            self.config,
        )


def _by_step(folder: Path, suffix: str) -> dict[int, Path]:
    return {int(path.stem.removeprefix("step")): path for path in sorted(folder.glob(f"step*.{suffix}"))}
