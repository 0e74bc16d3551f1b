"""Whether a study has every result that it defines."""

from __future__ import annotations

from ..errors import UserError
from ..figures import SUFFIXES, TABLES
from ..paths import START
from ..results import StudyResults, run_metrics
from ..study.stages import start_seeds


def check_complete(results: StudyResults) -> None:
    """UserError if a result of the study is missing, or if the record of a run or an evaluation is damaged."""
    study, folder, runs = results.study, results.folder, results.matrix.runs
    models = [f"{START}/seed{seed}" for seed in start_seeds(study)] + [run.name for run in results.matrix.evaluated]
    expected = [
        *(results.run_folder(run).summary for run in runs),
        *(folder.evaluation(name).record for name in models),
        *(folder.evaluation(name).samples for name in models),
        *(folder.figure(name, suffix) for name in study.figures for suffix in SUFFIXES),
        *(folder.table(name, suffix) for name in TABLES for suffix in (".csv", ".md", ".tex")),
        folder.report,
        folder.tracking,
    ]
    if missing := [path.relative_to(folder.path) for path in expected if not path.exists()]:
        raise UserError(
            f"{folder.path}: the study is not finished: {len(missing)} of its results are missing, such as "
            f"{missing[0]}. If `snakemake all` finds nothing to do, they were removed after their jobs ended: remove "
            "the folder `done` there and run it again, which keeps all other results."
        )
    # Reading them names a file that is damaged or missing.
    _ = results.summaries, results.model_evaluations
    for run in runs:
        run_metrics(results.run_folder(run))
