"""The jobs of a study: their inputs, outputs and completion markers.

The Snakefile, `policygrain plan` and `policygrain check --slurm` read the jobs here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..data.sources import source_digests
from ..figures import SUFFIXES, TABLES
from ..initial_models import start_identity
from ..paths import START, StudyFolder
from ..results import prepared_data
from ..study import Study
from ..study.fingerprint import (
    Fingerprints,
    code_digests,
    start_seed,
    start_seeds,
)
from ..study.runs import Run

# Rules whose jobs are submitted to a cluster, with their names; a job that trains two seeds is named `ARM/0+1`.
SUBMITTED = {
    "start_model": "seed{seed}",
    "train": "{arm}/{seeds}",
    "evaluate": "{shard}",
}
# Rules whose jobs take seconds and run on Snakemake's machine.
LOCAL = ("prepare", "figure", "table", "track", "report_page")


@dataclass(frozen=True)
class Job:
    """One process: its input files, the markers that it writes when it has finished, and its other output files.

    The name of a marker contains the fingerprint of everything that the result depends on.
    """

    rule: str
    fingerprint: str
    markers: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()  # that it trains or evaluates
    starts: tuple[int, ...] = ()  # seeds of the initial models that it makes or evaluates

    @property
    def outputs(self) -> tuple[str, ...]:
        """All declared files, without run folders, which Snakemake would delete before another attempt."""
        return self.markers + self.files


class Jobs:
    """The jobs of one study with its results in ``folder``.

    Created on first use: on a cluster every job reads the workflow but needs only its own entry.
    """

    def __init__(self, study: Study, folder: StudyFolder, fingerprints: Fingerprints) -> None:
        self.study, self.folder, self.fingerprints = study, folder, fingerprints

    @classmethod
    def of_results(cls, study: Study, folder: StudyFolder) -> Jobs:
        """The jobs for the current problem files and initial model; for missing ones, those that were recorded."""
        prepared = prepared_data(folder.data)
        sources = {**(prepared.sources if prepared else {}), **source_digests(study), **code_digests(study)}
        return cls(study, folder, Fingerprints(study, sources, start_identity(study, folder)))

    # Problems and initial models.

    @cached_property
    def training_data(self) -> tuple[str, ...]:
        """Marker and files of the training problems."""
        data = self.folder.data
        marker = self._marker("prepare", "training", self.fingerprints.training_data)
        return marker, str(data.train), str(data.validation)

    @cached_property
    def prepare(self) -> Job:
        """The job that writes all problems."""
        data, fingerprint = self.folder.data, self.fingerprints.data()
        training, *files = self.training_data
        files += [str(data.contamination), *(str(data.benchmark(b.name)) for b in self.study.evaluation.benchmarks)]
        markers = training, self._marker("prepare", "all", fingerprint)
        return Job("prepare", fingerprint, markers, files=tuple(files))

    def start_models(self, seeds: Iterable[int]) -> list[Job]:
        """The jobs that make the initial models of runs with ``seeds``; none for a pretrained model."""
        if self.study.model.start != "tiny":
            return []
        return [self._start_model(start) for start in dict.fromkeys(start_seed(self.study, seed) for seed in seeds)]

    def _start_model(self, start: int) -> Job:
        fingerprint = self.fingerprints.start_model(start)
        return self._job("start_model", {"seed": str(start)}, fingerprint, self.training_data, starts=(start,))

    # Training and evaluation.

    def train(self, runs: Sequence[Run]) -> Job:
        """The job that trains runs of one arm in sequence and, with `evaluation.after_training`, evaluates them."""
        arm, seeds = runs[0].arm, [run.seed for run in runs]
        evaluates = self.study.evaluation.after_training and arm in self.fingerprints.matrix.evaluated_arms
        data = self.prepare.outputs if evaluates else self.training_data
        inputs = data + _markers(self.start_models(seeds))
        names = {"arm": arm, "seeds": "+".join(map(str, seeds))}
        return self._job("train", names, self.fingerprints.process(runs), inputs, runs=tuple(runs))

    @cached_property
    def _processes(self) -> dict[Run, tuple[Run, ...]]:
        """Run → all runs that its process trains."""
        processes = self.fingerprints.matrix.processes(self.study.seeds_per_process)
        return {run: tuple(process) for process in processes for run in process}

    @cached_property
    def shards(self) -> dict[str, list[Run]]:
        """Runs by the process that evaluates them; the first one also evaluates the initial models."""
        size = self.study.evaluation.runs_per_engine
        runs = [] if self.study.evaluation.after_training else self.fingerprints.matrix.evaluated
        return {f"{i // size:02d}": runs[i : i + size] for i in range(0, len(runs) or 1, size)}

    def evaluate(self, shard: str) -> Job:
        """The job that evaluates the models of a shard in one engine."""
        runs, starts = self.shards[shard], start_seeds(self.study) if shard == "00" else []
        processes = dict.fromkeys(self._processes[run] for run in runs)
        model_jobs = [*self.start_models(starts), *map(self.train, processes)]
        inputs = self.prepare.outputs + _markers(model_jobs)
        fingerprint = self.fingerprints.evaluation(runs, starts)
        return self._job("evaluate", {"shard": shard}, fingerprint, inputs, runs=tuple(runs), starts=tuple(starts))

    def models(self, shard: str) -> dict[str, Path]:
        """The models of a shard, name → folder (or name on a hub)."""
        job = self.evaluate(shard)
        tiny, named = self.study.model.start == "tiny", Path(self.study.model.start)
        folders = {f"{START}/seed{seed}": self.folder.start(seed).path if tiny else named for seed in job.starts}
        return folders | {run.name: self.folder.run(run.arm, run.seed).model for run in job.runs}

    # Inputs of figures, and outputs made from figures.

    @cached_property
    def computed(self) -> list[Job]:
        """All jobs that train or evaluate."""
        trained = [self.train(runs) for runs in dict.fromkeys(self._processes.values())]
        evaluated = [self.evaluate(shard) for shard in self.shards]
        return [*trained, *evaluated]

    @cached_property
    def records(self) -> tuple[str, ...]:
        """The markers of `computed`."""
        return _markers(self.computed)

    def drawn(self, rule: str, name: str) -> Job:
        """The job of a figure or table, which reads only records."""
        folder, suffixes = (self.folder.figure, SUFFIXES) if rule == "figure" else (self.folder.table, (".csv", ".md"))
        marker = self._marker("figure", name, self.fingerprints.figures())
        files = tuple(str(folder(name, suffix)) for suffix in suffixes)
        return Job(rule, self.fingerprints.figures(), (marker,), self.records, files)

    @cached_property
    def figures(self) -> list[Job]:
        """All figures and tables."""
        names = {"figure": self.study.figures, "table": TABLES}
        return [self.drawn(rule, name) for rule in names for name in names[rule]]

    @cached_property
    def figure_files(self) -> tuple[str, ...]:
        """All files that figures and tables write."""
        return tuple(path for job in self.figures for path in job.outputs)

    @cached_property
    def track(self) -> Job:
        """The job that completes the copy in MLflow."""
        marker = self._marker("track", "mlflow", self.fingerprints.tracking())
        return Job("track", self.fingerprints.tracking(), (marker,), self.figure_files, (str(self.folder.tracking),))

    @cached_property
    def report_page(self) -> Job:
        """The job that writes the report."""
        marker = self._marker("report", "report", self.fingerprints.tracking())
        inputs = self.figure_files + self.track.outputs
        return Job("report_page", self.fingerprints.tracking(), (marker,), inputs, (str(self.folder.report),))

    # All jobs, and jobs by name.

    @cached_property
    def submitted(self) -> list[Job]:
        """All jobs of `SUBMITTED` rules."""
        groups = [self.study.seeds, *([run.seed for run in process] for process in self._processes.values())]
        start_models = [job for seeds in groups for job in self.start_models(seeds)]
        return [*{job.markers: job for job in start_models}.values(), *self.computed]

    @property
    def all(self) -> list[Job]:
        """All jobs of a study."""
        return [self.prepare, *self.submitted, *self.figures, self.track, self.report_page]

    def of(self, rule: str, wildcards: Mapping[str, str]) -> Job:
        """The job of a `SUBMITTED` rule by the wildcards in its marker."""
        if rule == "evaluate":
            return self.evaluate(wildcards["shard"])
        if rule == "train":
            return self.train([Run(wildcards["arm"], int(seed)) for seed in wildcards["seeds"].split("+")])
        return self._start_model(int(wildcards["seed"]))

    def marker(self, rule: str) -> str:
        """The path of a rule's markers, with wildcards."""
        return self._marker(rule, SUBMITTED[rule], "{fingerprint}")

    def log(self, rule: str) -> str:
        """The path of a rule's logs, with wildcards."""
        return str(self.folder.log(rule, f"{SUBMITTED[rule]}-{{fingerprint}}"))

    def _job(
        self,
        rule: str,
        names: Mapping[str, str],
        fingerprint: str,
        inputs: tuple[str, ...],
        runs: tuple[Run, ...] = (),
        starts: tuple[int, ...] = (),
    ) -> Job:
        marker = self._marker(rule, SUBMITTED[rule].format(**names), fingerprint)
        return Job(rule, fingerprint, (marker,), inputs, runs=runs, starts=starts)

    def _marker(self, rule: str, name: str, fingerprint: str) -> str:
        return str(self.folder.done(rule, name, fingerprint))


def _markers(jobs: Iterable[Job]) -> tuple[str, ...]:
    return tuple(marker for job in jobs for marker in job.markers)
