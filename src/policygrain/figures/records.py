"""A study's records, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import UserError
from ..files import read_json, read_json_lines
from ..study import Study
from ..study.runs import RunMatrix, arms_of, run_matrix

START = "start"  # the start models, in evaluations


@dataclass
class Records:
    """What a study's runs and evaluations left behind."""

    study: Study
    results: Path

    @cached_property
    def matrix(self) -> RunMatrix:
        """Every run that the study asks for."""
        return run_matrix(self.study)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per run and step: `arm`, `seed`, `step` and every logged metric."""
        frames = []
        for run in self.matrix.runs:
            path = self.results / run.folder / "metrics.jsonl"
            if path.exists():
                frames.append(_steps(path).assign(arm=run.arm, seed=run.seed))
        if not frames:
            raise UserError(f"{self.results}: no run has been trained yet; run `snakemake all` first.")
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row per model, seed and benchmark: `arm`, `seed`, `benchmark`, `accuracy`, `per_problem` …"""
        rows = [row for path in sorted((self.results / "evaluation").glob("*.jsonl")) for row in read_json_lines(path)]
        if not rows:
            raise UserError(f"{self.results}: nothing has been evaluated yet; run `snakemake all` first.")
        frame = pd.DataFrame(rows)
        if frame["protocol_key"].nunique() > 1:
            raise UserError(
                f"{self.results}/evaluation: records of different protocols cannot stand in one table; evaluate again."
            )
        names = frame["model"].str.rsplit("/seed", n=1)
        return frame.assign(arm=names.str[0], seed=names.str[1].astype(int)).drop_duplicates(["model", "benchmark"])

    @cached_property
    def probes(self) -> pd.DataFrame:
        """One row per seed, ratio and number of updates that the policy is off the batch by."""
        probed = [read_json(path) for path in sorted((self.results / "probe").glob("seed*.json"))]
        rows = [row for found in probed for row in found["rows"]]
        if not rows:
            unequal = "no group had unequal rewards: take a start model that solves some problems, or more prompts"
            why = unequal if probed else "run `snakemake all` first"
            raise UserError(f"{self.results}/probe: no batch has been probed; {why}.")
        return pd.DataFrame(rows)

    @property
    def benchmarks(self) -> list[str]:
        """Benchmark names, in the order of the study."""
        return [b.name for b in self.study.evaluation.benchmarks]

    def arms(self, experiment: str) -> list[str]:
        """The arms of one experiment, in its order; empty where the study has no such experiment."""
        found = self.study.experiments.get(experiment)
        return [arm.name for arm in arms_of(found, self.study)] if found else []

    def scores(self, arm: str, benchmark: str, clean: bool = False) -> NDArray[np.float64]:
        """Score per problem, [seeds, problems], seeds in order; ``clean`` leaves out what training has seen."""
        rows = self.evaluations.query("arm == @arm and benchmark == @benchmark").sort_values("seed")
        if rows.empty:
            raise UserError(f"{self.results}/evaluation: no record of {arm!r} on {benchmark!r}; run `snakemake all`.")
        scores = np.array(rows["per_problem"].tolist(), dtype=float)
        return np.delete(scores, self.contaminated(benchmark), axis=1) if clean else scores

    def contaminated(self, benchmark: str) -> list[int]:
        """Places of a benchmark's problems that are among the training prompts."""
        rows = self.evaluations[self.evaluations["benchmark"] == benchmark]
        return list(rows["contaminated"].iloc[0]) if "contaminated" in rows and len(rows) else []

    def final_validation(self, arm: str) -> NDArray[np.float64]:
        """Validation accuracy of each seed after its last step. [seeds]."""
        rows = self.steps[(self.steps["arm"] == arm) & self.steps["validation_accuracy"].notna()]
        return rows.sort_values("step").groupby("seed")["validation_accuracy"].last().to_numpy(dtype=float)


def _steps(path: Path) -> pd.DataFrame:
    """A run's metrics, with the seconds of training so far, which are kept apart."""
    frame = pd.DataFrame(read_json_lines(path))
    timings = path.with_name("timings.jsonl")
    if not timings.exists():
        return frame
    seconds = pd.DataFrame(read_json_lines(timings), columns=["step", "total_seconds"])
    return frame.merge(seconds, on="step", how="left")
