"""Stages that write what people read: figures, the report, MLflow, clip ranges and the schema."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path

from .declare import CONFIG, DONE, RESULTS, command, flag, job, option, path


@command(
    CONFIG,
    option("name", "figure or table; see `figures` in the study file"),
    RESULTS,
    path("--out", "file without suffix (default: where the study has it)"),
    DONE,
)
def figure(arguments: Namespace) -> None:
    """Draw one figure, or write one table, from a study's records.

    A figure is written as PDF, SVG and PNG, a table as CSV and Markdown.
    """
    from ..figures.catalogue import draw
    from ..results.reader import StudyResults
    from ..study import load_recorded_study

    results = StudyResults(arguments.results, load_recorded_study(arguments.config))
    with job(arguments.done, [arguments.name]) as digests:
        draw(arguments.name, results, arguments.out)
        digests[arguments.name] = results.fingerprints.figures()


@command(
    CONFIG,
    RESULTS,
    path("--captions", "folder of captions, NAME.rst (default: workflow/report)", default=Path("workflow/report")),
    path("--out", "HTML file", required=True),
    DONE,
)
def report(arguments: Namespace) -> None:
    """Write a study's report: one self-contained HTML page.

    It has figures, tables, claims, the evaluation protocol and where every number comes from.
    """
    from ..report.page import write_report
    from ..results.reader import StudyResults
    from ..study import load_recorded_study

    results = StudyResults(arguments.results, load_recorded_study(arguments.config))
    with job(arguments.done, [arguments.out.name]) as digests:
        write_report(results, arguments.captions, arguments.out)
        digests[arguments.out.name] = results.fingerprints.tracking()


@command(
    CONFIG,
    RESULTS,
    option(
        "--follow",
        "log the steps of runs while they are trained, until the process PID, which must have started this, ends",
        type=int,
        metavar="PID",
    ),
    DONE,
)
def track(arguments: Namespace) -> None:
    """Mirror a study's records into MLflow.

    What is in MLflow already is not logged again.
    """
    from ..results.reader import StudyResults
    from ..results.schema import write_record
    from ..study import load_recorded_study
    from ..track.follow import follow
    from ..track.mirror import mirror

    results = StudyResults(arguments.results, load_recorded_study(arguments.config))
    if arguments.follow is not None:
        os.nice(10)  # lower priority than training
        follow(results.folder, results.study, arguments.follow)
        return
    record = results.folder.tracking
    with job(arguments.done, [record.name]) as digests:
        write_record(record, mirror(results))
        digests[record.name] = results.fingerprints.tracking()


@command(
    path("results", "the study's results, such as results/phase-ranges", metavar="RESULTS"),
    path("--out", "JSON file for all candidates and the choice"),
)
def ranges(arguments: Namespace) -> None:
    """Choose a clip range per ratio from the runs of a study of candidates.

    studies/phase-ranges.yaml is such a study. Candidates are compared by the area under their learning curves.
    """
    from ..analysis.clip_ranges import choose_ranges, ranges_text
    from ..files import atomic_json
    from ..results.reader import StudyResults

    choice = choose_ranges(StudyResults(arguments.results))
    print(ranges_text(choice))
    if arguments.out:
        atomic_json(arguments.out, choice)


@command(flag("--markdown", "the reference of all keys instead, as Markdown"))
def schema(arguments: Namespace) -> None:
    """Print the JSON schema of study files, or the reference of all keys."""
    from ..study.documentation import markdown
    from ..study.schema import Study

    print(markdown() if arguments.markdown else json.dumps(Study.model_json_schema(), indent=1) + "\n", end="")
