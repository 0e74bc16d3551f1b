"""Whether a study has every result that it defines, and whether its records may be published."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import NoResults, UserError
from ..figures import SUFFIXES, TABLES
from ..paths import START
from ..provenance import PACKAGE, commit, in_history, is_same_package
from ..results import StudyResults, run_metrics
from ..study.fingerprint import measured_starts, start_seeds
from ..text import some

RULE = "(rule 10 of docs/design.md)"


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
    # Reading them names a file that is damaged or missing.
    _ = results.summaries, results.model_evaluations
    for run in results.matrix.runs:
        run_metrics(results.run_folder(run))


def missing_results(results: StudyResults) -> list[Path]:
    """The missing files of a study, of one per run, evaluation and measurement, and those of figures and tables."""
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


def made_at(results: StudyResults) -> dict[str, list[str]]:
    """Commit → the runs and measurements that were made there, by their files.

    Measurements of versions that did not record the commit are left out.
    """
    folder = results.folder
    records: dict[Path, str | None] = {
        results.run_folder(run).summary: summary.environment.commit for run, summary in results.summaries.items()
    }
    for name, evaluation in results.model_evaluations.items():
        records[folder.evaluation(name).record] = evaluation.facts.commit
    with suppress(NoResults):
        records |= {folder.estimators(record.seed): record.commit for record in results.estimator_records}
    with suppress(NoResults):
        records |= {folder.rounds(record.seed): record.commit for record in results.round_records}
    by_commit: dict[str, list[str]] = {}
    for path, revision in records.items():
        if revision is not None:
            by_commit.setdefault(revision, []).append(path.relative_to(folder.path).as_posix())
    return by_commit


def broken(by_commit: dict[str, list[str]], package: Path = PACKAGE) -> list[str]:
    """Reasons why records made at these commits cannot be published, a phrase each."""
    if not commit(package):
        return ["policygrain is not run from a working copy of its repository, so no commit can be looked up"]
    if not by_commit:
        return ["no record says at which commit it was made"]
    problems = []
    for revision, names in by_commit.items():
        if not revision:
            problems.append(f"it is not known at which commit {_some(names)} made")
        elif revision.endswith("+"):
            problems.append(f"{_some(names)} made from a tree with uncommitted changes, at {revision[:12]}")
        elif not in_history(revision, package):
            problems.append(f"{_some(names)} made at {revision[:12]}, which is not in the history of this repository")
    return problems


def check_commits(results: StudyResults, package: Path = PACKAGE) -> str:
    """The commits of a study's records, for the reader. UserError if they may not be published."""
    by_commit = made_at(results)
    if problems := broken(by_commit, package):
        raise UserError(
            f"{results.folder.path}: {'; '.join(problems)}. Published records are made at commits of this repository "
            f"with a clean tree {RULE}. Commit, and run the study again at that commit; to archive it for yourself, "
            "leave out --published."
        )
    first, *others = by_commit
    counts = ", ".join(f"{len(names)} records at {revision[:12]}" for revision, names in by_commit.items())
    differ = not all(is_same_package(first, other, package) for other in others)
    return counts + ("; the source of the package differs between them" if differ else "")


def _some(names: list[str]) -> str:
    return f"{some(names)} {'was' if len(names) == 1 else 'were'}"
