"""What looks at something: methods, studies, machines, results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import Command, study


def add(command: Command) -> None:
    """Add these commands to the parser."""
    added = command("methods", _methods, "list the methods")
    added.add_argument("--json", action="store_true", help="everything, as JSON")
    added.add_argument("--config", type=Path, help="add a study's own methods")

    added = command("check", _check, "check a study file and say what it comes to")
    study(added)

    added = command("doctor", _doctor, "check this machine, or with --slurm a cluster, before the first job")
    study(added)
    added.add_argument("--slurm", action="store_true", help="check a cluster from its login node")
    added.add_argument("--profile", type=Path, default=Path("slurm/config.yaml"), help="(default: slurm/config.yaml)")

    added = command("show", _show, "read evaluations: one model in detail, several side by side, samples as a page")
    added.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="run, evaluation/, records.json, or results")
    added.add_argument("--against", metavar="NAME", help="what differences are to (default: the first)")
    added.add_argument("--benchmark", action="append", metavar="NAME", help="this one alone; may be repeated")
    added.add_argument("--anyway", action="store_true", help="compare records of different protocols")
    added.add_argument("--json", action="store_true", help="everything, as JSON")
    added.add_argument("--page", type=Path, metavar="OUT", help="write the samples of a run, or two, as an HTML file")

    added = command("inspect", _inspect, "show what a training step did to each token of some samples")
    added.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    added.add_argument("--step", type=int, default=None, help="default: the last that was kept")
    added.add_argument("--out", type=Path, default=None, help="HTML file (default: in the run's folder)")

    added = command("grade", _grade, "grade a file of answers")
    added.add_argument(
        "file", type=Path, metavar="FILE.jsonl", help="lines with `gold` and `prediction` or `completion`"
    )
    added.add_argument("--out", type=Path, required=True, help="the lines with `correct` and `status`")
    added.add_argument("--workers", type=int, default=None, help="processes (default: one a processor)")
    added.add_argument("--seconds", type=float, default=1.0, help="processor time an answer may take (default: 1)")
    added.add_argument(
        "--relative-tolerance", type=float, default=None, help="of numbers, as a share of the gold answer"
    )
    added.add_argument("--list-answer", action="store_true", help="gold answers are lists in any order")

    added = command("explain", _explain, "say what is behind a number of a table")
    added.add_argument("table", type=Path, metavar="TABLE.csv", help="results/STUDY/tables/NAME.csv")
    added.add_argument("--cell", required=True, metavar="ROW,COLUMN", help="such as tepo,average; may be cut short")

    added = command("compare", _compare, "compare two studies: which numbers moved beyond noise")
    added.add_argument("studies", nargs=2, type=Path, metavar="RESULTS", help="results/STUDY of each")
    added.add_argument("--out", type=Path, default=None, help="CSV of all numbers")

    added = command("freeze", _freeze, "put a study's records, with checksums, into one archive")
    added.add_argument("results", type=Path, help="results/STUDY")
    added.add_argument("--out", type=Path, required=True, help="ZIP file")

    added = command("thaw", _thaw, "unpack a frozen study, verify it, and redraw its figures and tables")
    added.add_argument("archive", type=Path, help="ZIP file")
    added.add_argument("--out", type=Path, required=True, help="empty folder")

    added = command("schema", _schema, "print the JSON schema of study files")
    added.add_argument("--markdown", action="store_true", help="the reference of all keys instead")


def _methods(arguments: argparse.Namespace) -> None:
    """List the presets, and with --config a study's own methods."""
    from ..methods import method, method_names
    from ..study import load_study

    own = load_study(arguments.config).methods if arguments.config else {}
    methods = [method(name, own) for name in dict.fromkeys([*method_names(), *own])]
    if arguments.json:
        print(json.dumps({m.name: m.data() for m in methods}, indent=1, ensure_ascii=False))
        return
    width = max(len(m.name) for m in methods)
    for m in methods:
        print(f"{m.name:{width}}  {m.summary}  [{m.source}]" if m.source else f"{m.name:{width}}  {m.summary}")


def _check(arguments: argparse.Namespace) -> None:
    """Read a study file, complain about what is wrong, count what it asks for."""
    from ..study import load_study
    from ..study.runs import digest, run_matrix

    study = load_study(arguments.config)
    matrix = run_matrix(study)
    counts = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
    print(f"{study.name}: {counts}; digest {digest(study)}.")


def _doctor(arguments: argparse.Namespace) -> None:
    """Look at everything a study needs, say what to change, and exit with 2 when something is wrong."""
    from ..doctor import cluster, examine, this_machine

    results = Path("results")
    if arguments.slurm:
        examine(cluster(arguments.config, arguments.profile, results))
    else:
        examine(this_machine(arguments.config, results))


def _show(arguments: argparse.Namespace) -> None:
    """Accuracy with intervals, outcomes and the protocol; paired differences between several; their samples."""
    from ..analysis import models as compare
    from ..evaluate import reading

    entries = reading.find(arguments.paths)
    reading.only(entries, arguments.benchmark)
    differing = reading.same_protocol(entries, arguments.anyway)
    first = compare.reference(entries, arguments.against)
    if arguments.page:
        from ..views.samples import write_page

        print(write_page(entries, arguments.page))
    elif arguments.json:
        print(json.dumps(compare.data(entries, first, differing), indent=1, ensure_ascii=False))
    else:
        from ..views.show import comparison, detail

        print(detail(first) if len(entries) == 1 else comparison(entries, first, differing), end="")


def _inspect(arguments: argparse.Namespace) -> None:
    """Write a page of samples whose tokens are coloured by ratio, advantage, clip and mask."""
    from ..views.tokens import write_page

    print(write_page(arguments.run, arguments.step, arguments.out))


def _grade(arguments: argparse.Namespace) -> None:
    """Compare answers with gold answers: a `prediction` as it stands, a `completion` by its last box."""
    from ..grading import MathGrader, Options
    from ..grading.grade_file import grade

    options = Options(relative_tolerance=arguments.relative_tolerance, list_answer=arguments.list_answer)
    with MathGrader(arguments.workers, arguments.seconds) as grader:
        counts = grade(arguments.file, arguments.out, grader, options)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))


def _explain(arguments: argparse.Namespace) -> None:
    """Print the records, seeds, commits and commands behind one cell."""
    from ..report.explain import explain

    print(explain(arguments.table, arguments.cell))


def _compare(arguments: argparse.Namespace) -> None:
    """Print what differs between two studies beyond noise."""
    from ..analysis.studies import compare_studies
    from ..files import atomic_text

    frame, text = compare_studies(*arguments.studies)
    if arguments.out:
        atomic_text(arguments.out, frame.to_csv(index=False))
    print(text)


def _freeze(arguments: argparse.Namespace) -> None:
    """Everything that figures and tables are drawn from, in one file."""
    from ..report.freeze import freeze

    manifest = freeze(arguments.results, arguments.out)
    print(f"{arguments.out}: {len(manifest['files'])} files of {manifest['study']}.")


def _thaw(arguments: argparse.Namespace) -> None:
    """Verify checksums, unpack, and draw everything anew beside what was frozen, in `redrawn/`."""
    from ..figures import TABLES
    from ..figures.catalogue import draw
    from ..report.freeze import thaw
    from ..study import load_study

    manifest = thaw(arguments.archive, arguments.out)
    study = load_study(arguments.out / "study.yaml")
    for name in (*study.figures, *TABLES):
        draw(name, study, arguments.out, arguments.out / "redrawn" / name)
    print(f"{arguments.out}: {len(manifest['files'])} files verified; figures and tables are in `redrawn/` there.")


def _schema(arguments: argparse.Namespace) -> None:
    """Print the JSON schema that editors use, or the reference that people read."""
    from ..study.documentation import markdown
    from ..study.schema import Study

    if arguments.markdown:
        print(markdown(), end="")
        return
    print(json.dumps(Study.model_json_schema(), indent=1))
