"""Whether a finished study has every result that it defines."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..figures import SUFFIXES, TABLES
from ..results.layout import START
from ..results.reader import StudyResults
from ..study.fingerprint import measured_starts, start_seeds


def check_complete(results: StudyResults) -> None:
    """UserError if a result of the study is missing, or if the record of a run or an evaluation is damaged."""
    missing = missing_results(results)
    if missing:
        folder, first = results.folder.path, missing[0].relative_to(results.folder.path)
        raise UserError(
            f"{folder}: the study is not finished: {len(missing)} of its results are missing, such as {first}. If "
            "`snakemake all` finds nothing to do, they were removed after their jobs ended: remove the folder `done` "
            "there and run it again, which keeps all other results."
        )
    _ = results.summaries, results.model_evaluations  # reading them names a file that is damaged


def missing_results(results: StudyResults) -> list[Path]:
    """The files that a finished study has and this one has not: one of each run, evaluation, measurement and figure."""
    study, folder = results.study, results.folder
    models = [f"{START}/seed{seed}" for seed in start_seeds(study)]
    models += [run.name for run in results.matrix.evaluated]
    expected = [results.run_folder(run).summary for run in results.matrix.runs]
    expected += [folder.evaluation(name).record for name in models]
    expected += [folder.estimators(seed) for seed in measured_starts(study, study.estimators)]
    expected += [folder.rounds(seed) for seed in measured_starts(study, study.rounds)]
    expected += [folder.figure(name, suffix) for name in study.figures for suffix in SUFFIXES]
    expected += [folder.table(name, suffix) for name in TABLES for suffix in (".csv", ".md")]
    expected += [folder.report, folder.tracking]
    return [path for path in expected if not path.exists()]
