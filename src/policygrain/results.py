"""Reads the results of a study: typed records, and tables of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import digests, records
from .errors import NoResults, UserError
from .files import json_lines
from .paths import EvaluationFolder, RunFolder, StartFolder, StudyFolder
from .records import read_record
from .study import Study, load_study
from .study.dependencies import CODE, arm_settings, evaluated_models, seeds_of, settings, start_seed
from .study.runs import Run, RunMatrix, arms_of, run_matrix

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

ALL = "Run `snakemake all`."
TRAIN = "To train the run again, remove its folder; other results are kept."
EVALUATE = "Evaluate the model again."


def run_config(run: RunFolder) -> records.RunConfig:
    return read_record(records.RunConfig, run.config, TRAIN)


def run_summary(run: RunFolder) -> records.RunSummary:
    return read_record(records.RunSummary, run.summary, TRAIN)


def run_metrics(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics of a run by step. UserError if steps are missing."""
    rows = _steps(run, run.metrics)
    if run.summary.exists() and len(rows) != (count := run_summary(run).final.steps + 1):  # with the final validation
        raise UserError(f"{run.metrics}: {len(rows)} steps of {count}, although the run has ended. {TRAIN}")
    return rows


def run_timings(run: RunFolder) -> list[dict[str, Any]]:
    return _steps(run, run.timings)


def _steps(run: RunFolder, path: Path) -> list[dict[str, Any]]:
    """The rows of a file of a run, without an incomplete last line if it has not ended. UserError unless 0, 1, 2 …"""
    rows: list[dict[str, Any]] = []
    for number, row in json_lines(path, TRAIN, None if run.summary.exists() else []):
        if row.get("step") != len(rows):
            found = f"expected step {len(rows)}, found {row.get('step')!r}: steps are missing or doubled"
            raise UserError(f"{path}, line {number}: {found}. {TRAIN}")
        rows.append(row)
    return rows


def start_model(folder: StartFolder) -> records.StartModelRecord:
    return read_record(records.StartModelRecord, folder.record, "Remove the folder and build the model again.")


def model_evaluation(folder: EvaluationFolder) -> records.ModelEvaluation:
    return read_record(records.ModelEvaluation, folder.record, EVALUATE)


def evaluated_samples(folder: EvaluationFolder, record: records.BenchmarkRecord) -> pd.DataFrame:
    """The rows of `samples` that are sampled responses to a benchmark. UserError if they are of another evaluation."""
    rows = samples(folder.samples)
    rows = rows[(rows["benchmark"] == record.benchmark) & ~rows["greedy"]]
    if rows["outcome"].value_counts().to_dict() != record.outcomes:
        raise UserError(f"{folder.samples}: these are not the samples that {folder.record.name} counts. {EVALUATE}")
    return rows


def samples(path: Path) -> pd.DataFrame:
    """All graded responses of a model, a row of `EvaluatedSample` each. UserError if the file cannot be read."""
    import pandas as pd

    try:
        return pd.read_parquet(path, columns=list(records.EvaluatedSample._fields))
    except (OSError, ValueError) as error:  # Arrow's errors are of these kinds
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path}: cannot be read as evaluated samples ({reason}). {EVALUATE}") from error


def share_starts(study: Study) -> bool:
    """Whether several seeds begin from each of several initial models, which are then the units of replication."""
    seeds = {run.seed for run in run_matrix(study).runs}
    return 1 < len({start_seed(study, seed) for seed in seeds}) < len(seeds)


def mean_by_unit(study: Study, seeds: Iterable[Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values [seeds, ...] averaged over seeds that share an initial model, which are not independent: [units, ...].

    Where all runs begin from one initial model, each seed is a unit, and intervals are over training seeds for it.
    """
    import numpy as np

    if not share_starts(study):
        return values
    starts = np.array([start_seed(study, int(seed)) for seed in seeds])
    return np.array([values[starts == start].mean(axis=0) for start in np.unique(starts)])


def _check_inputs(study: Study, runs: Mapping[str, records.RunConfig]) -> None:
    """UserError if runs, by the names of their folders, had different initial models of one name, or problems."""
    found: dict[tuple[str, int | None], dict[str, str]] = defaultdict(dict)
    for name, config in runs.items():
        start = start_seed(study, config.seed) if study.model.is_made else None
        found["the initial model", start][config.inputs.start_model] = name
        found["the training problems", None][config.inputs.train] = name
        found["the validation problems", None][config.inputs.validation] = name
    for (what, _), names in found.items():
        if len(names) > 1:
            (one, first), (other, second), *_ = names.items()
            raise UserError(f"{what} changed between runs: {one} of {first}, {other} of {second}. {ALL}")


def _check_settings(what: str, recorded: dict[str, Any], expected: dict[str, Any]) -> None:
    keys = {*recorded, *expected} - {CODE}  # the files of custom functions may not be here
    if differ := sorted(key for key in keys if recorded.get(key) != expected.get(key)):
        raise UserError(f"{what} with other settings than the study's ({', '.join(differ)} differ). {ALL}")


class StudyResults:
    """The results of a study, by default of the study file in them. They are read without data, models and network."""

    def __init__(self, results: Path, study: Study | None = None) -> None:
        self.folder = StudyFolder(results)
        if study is None and not self.folder.study.exists():
            raise UserError(f"{results}: no study.yaml here; give a study's results folder, such as results/laptop.")
        self.study = study or load_study(self.folder.study)

    @cached_property
    def matrix(self) -> RunMatrix:
        return run_matrix(self.study)

    def run_folder(self, run: Run) -> RunFolder:
        return self.folder.run(run.arm, run.seed)

    @cached_property
    def trained(self) -> dict[Run, RunFolder]:
        """The runs of the study that have metrics. UserError if one was trained with other settings."""
        all_runs = {run: self.run_folder(run) for run in self.matrix.runs}
        folders = {run: f for run, f in all_runs.items() if f.metrics.exists() or f.summary.exists()}
        configs = {run: run_config(folder) for run, folder in folders.items()}
        of_arms = {name: arm_settings(self.study, arm) for name, arm in self.matrix.arms.items()}
        for run, folder in folders.items():
            if not folder.metrics.exists():
                raise UserError(f"{folder.metrics}: is missing, although the run has ended. {TRAIN}")
            expected = {**of_arms[run.arm], **seeds_of(self.study, run.seed)}
            _check_settings(f"{folder.path}: a run", configs[run].settings, expected)
        _check_inputs(self.study, {str(folders[run].path): config for run, config in configs.items()})
        return folders

    @cached_property
    def summaries(self) -> dict[Run, records.RunSummary]:
        return {run: run_summary(folder) for run, folder in self.trained.items() if folder.summary.exists()}

    @cached_property
    def model_evaluations(self) -> dict[str, records.ModelEvaluation]:
        """All evaluations, of initial models and then of runs. UserError if one was made with other settings."""
        names = evaluated_models(self.study).values()
        folders = {name: self.folder.evaluation(name) for of_arm in names for name in of_arm}
        found = {name: model_evaluation(folder) for name, folder in folders.items() if folder.record.exists()}
        expected = settings(self.study, "evaluation")
        for arm in dict.fromkeys(name.split("/")[0] for name in found):
            if (path := self.folder.evaluated(arm)).exists():
                evaluated = read_record(records.EvaluatedArm, path, EVALUATE)
                _check_settings(f"{path}: an evaluation", evaluated.settings, expected)
        return found

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per run and step: `arm`, `seed`, `step`, every metric, and `total_seconds` of training so far."""
        import pandas as pd

        rows = []
        for run, folder in self.trained.items():
            timings = run_timings(folder) if folder.timings.exists() else []
            seconds = {timing["step"]: timing.get("total_seconds") for timing in timings}
            for row in run_metrics(folder):
                rows.append({**row, "total_seconds": seconds.get(row["step"]), "arm": run.arm, "seed": run.seed})
        if not rows:
            raise NoResults(f"{self.folder.path}: no run has been trained yet. {ALL}")
        return pd.DataFrame(rows)

    @cached_property
    def steps_of_arms(self) -> dict[str, pd.DataFrame]:
        """The rows of `steps` of the runs that have ended by arm, in the order of the steps."""
        ended = {(run.arm, run.seed) for run in self.summaries}
        steps = self.steps[[run in ended for run in zip(self.steps["arm"], self.steps["seed"], strict=True)]]
        return {str(arm): rows for arm, rows in steps.sort_values("step", kind="stable").groupby("arm")}

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row per model and benchmark: `arm`, `seed`, and the columns of `BenchmarkRecord`."""
        import pandas as pd

        if not self.model_evaluations:
            raise NoResults(f"{self.folder.path}: nothing has been evaluated yet. {ALL}")
        shared = ({k: v for k, v in e.protocol.items() if k != "model"} for e in self.model_evaluations.values())
        if len({digests.of_json(protocol) for protocol in shared}) > 1:
            hint = "If it remains, vLLM sampled for some, and not for all: set `evaluation.engine`."
            raise UserError(f"{self.folder.path}: its models were evaluated under different protocols. {ALL} {hint}")
        rows = []
        for name, evaluation in self.model_evaluations.items():
            arm, _, seed = name.rpartition("/seed")
            for record in evaluation.records:
                row = {"arm": arm, "seed": int(seed), **record.model_dump()}
                sampling = evaluation.protocol["benchmarks"][record.benchmark]["sampling"]
                if evaluation.protocol.get("greedy") and sampling["temperature"] == 0:  # its responses are greedy ones
                    row["greedy"] = record.per_problem
                rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def untrained(self) -> set[str]:
        """Arms with a run that made no optimizer step, so its final model is the initial model."""
        return {run.arm for run, summary in self.summaries.items() if summary.final.updates == 0}

    @property
    def benchmarks(self) -> list[str]:
        return [b.name for b in self.study.evaluation.benchmarks]

    @property
    def averaged(self) -> list[str]:
        """The names of the benchmarks that the average counts: all, if it counts none."""
        return [b.name for b in self.study.evaluation.benchmarks if b.average] or self.benchmarks

    def arms(self, experiment: str) -> list[str]:
        """The arms of one experiment, in order; empty if the study has no such experiment."""
        section = self.study.experiments.get(experiment)
        return [arm.name for arm in arms_of(section, self.study)] if section else []

    def scores(self, arm: str, benchmark: str, clean: bool = False, column: str = "per_problem") -> NDArray[np.float64]:
        """Score per problem [units, problems], as in `mean_by_unit`; ``clean``: without problems seen in training."""
        import numpy as np

        table = self.evaluations
        rows = table[(table["arm"] == arm) & (table["benchmark"] == benchmark)].sort_values("seed")
        if rows.empty:
            raise NoResults(f"{self.folder.path}: no evaluation of {arm!r} on {benchmark!r}. {ALL}")
        scores = mean_by_unit(self.study, rows["seed"], np.array(rows[column].tolist(), dtype=float))
        return np.delete(scores, self.contaminated(benchmark), axis=1) if clean else scores

    def contaminated(self, benchmark: str) -> list[int]:
        rows = self.evaluations[self.evaluations["benchmark"] == benchmark]
        return list(rows["contaminated"].iloc[0]) if len(rows) else []
