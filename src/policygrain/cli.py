"""The command line. Each command is one stage of the pipeline and works without Snakemake."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import Stopped, UserError
from .tasks.commands import add_commands

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again


def main(argv: list[str] | None = None) -> int:
    """Run a command. The exit code is 2 for a user's mistake, explained in one message, and 75 for work to resume."""
    arguments = _parser().parse_args(argv)
    # Importing torch and transformers makes a million objects that live to the end; looking for garbage among them is a
    # sixth of a short run's start. `load_model` switches it on again.
    gc.disable()
    try:
        arguments.command(arguments)
    except UserError as error:
        print(f"policygrain: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        print(f"policygrain: {stopped} The same command resumes.", file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        print("policygrain: interrupted; the same command resumes.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno is None:
            raise
        print(f"policygrain: {error.filename or ''}: {error.strerror}.", file=sys.stderr)
        return 2
    finally:
        gc.enable()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="policygrain", description="At what grain should a policy gradient act?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=run.__doc__)
        added.set_defaults(command=run)
        return added

    def study(added: argparse.ArgumentParser) -> None:
        added.add_argument("--config", type=Path, default=Path("config.yaml"), help="study file (default: config.yaml)")

    added = command("methods", _methods, "list the methods")
    added.add_argument("--json", action="store_true", help="everything, as JSON")
    added.add_argument("--config", type=Path, help="add a study's own methods")

    add_commands(commands)

    added = command("check", _check, "check a study file and say what it comes to")
    study(added)

    added = command("doctor", _doctor, "check this machine, or with --slurm a cluster, before the first job")
    study(added)
    added.add_argument("--slurm", action="store_true", help="check a cluster from its login node")
    added.add_argument("--profile", type=Path, default=Path("slurm/config.yaml"), help="(default: slurm/config.yaml)")

    added = command("prepare", _prepare, "write a study's problems")
    study(added)
    added.add_argument("--out", type=Path, required=True, help="folder")

    added = command("start-model", _start_model, "build a study's tiny start model")
    study(added)
    added.add_argument("--seed", type=int, default=None, help="default: the study's first")
    added.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    added.add_argument("--out", type=Path, required=True, help="folder")

    added = command("train", _train, "train runs; each resumes by itself")
    study(added)
    added.add_argument("--run-dir", required=True, help="folder of the run; {seed} stands for the seed")
    added.add_argument("--arm", default=None, help="method, or arm of the study (default: the study's first)")
    added.add_argument("--seeds", "--seed", type=int, nargs="+", metavar="SEED", help="default: the study's first")
    added.add_argument("--start", default=None, help="start model (default: the study's; a tiny one is built)")
    added.add_argument("--data", type=Path, default=None, help="folder written by `prepare` (default: made in the run)")
    added.add_argument("--done", type=Path, default=None, help="file to write when all of them are trained")

    added.add_argument(
        "--time-limit",
        type=float,
        metavar="MINUTES",
        help="save and exit with 75 before so much time is over (default: what is left of the SLURM job)",
    )

    added = command("evaluate", _evaluate, "judge finished runs on the study's benchmarks")
    study(added)
    added.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    added.add_argument("--out", type=Path, required=True, help="JSON Lines of records")
    added.add_argument("--part", metavar="I/N", help="draw one of N shares of the responses, I from 0; judge nothing")
    added.add_argument("models", nargs="+", metavar="NAME=MODEL_DIR", help="what to judge")

    added = command("probe", _probe, "look at one batch with every ratio: spread of ratios, noise of gradients")
    study(added)
    added.add_argument("--seed", type=int, required=True, help="of the batch")
    added.add_argument("--start", required=True, help="model that samples it")
    added.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    added.add_argument("--out", type=Path, required=True, help="JSON file")

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
    added.add_argument("--out", type=Path, required=True, help="the lines with `verdict` and `status`")
    added.add_argument("--workers", type=int, default=None, help="processes (default: one a processor)")
    added.add_argument("--seconds", type=float, default=1.0, help="processor time an answer may take (default: 1)")
    added.add_argument(
        "--relative-tolerance", type=float, default=None, help="of numbers, as a share of the gold answer"
    )
    added.add_argument("--several", action="store_true", help="gold answers are lists in any order")

    added = command("figure", _figure, "draw one figure or table from the records")
    study(added)
    added.add_argument("name", help="see `figures` in the study file")
    added.add_argument("--results", type=Path, required=True, help="the study's results")
    added.add_argument("--out", type=Path, required=True, help="file without suffix")

    added = command("report", _report, "write a study's report: one HTML page with everything")
    study(added)
    added.add_argument("--results", type=Path, required=True, help="the study's results")
    added.add_argument("--captions", type=Path, default=Path("workflow/report"), help="folder of NAME.rst")
    added.add_argument("--out", type=Path, required=True, help="HTML file")

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

    added = command("track", _track, "mirror a study's records into MLflow")
    study(added)
    added.add_argument("--results", type=Path, required=True, help="the study's results")
    added.add_argument("--done", type=Path, required=True, help="file to write when everything is there")

    added = command("calibrate", _calibrate, "choose clip bands and learning rate on validation problems")
    study(added)
    added.add_argument("--work", type=Path, required=True, help="folder for pilot runs")
    added.add_argument("--out", type=Path, required=True, help="JSON of what was measured and chosen")

    added = command("schema", _schema, "print the JSON schema of study files")
    added.add_argument("--markdown", action="store_true", help="the reference of all keys instead")
    return parser


def _methods(arguments: argparse.Namespace) -> None:
    """List the presets, and with --config a study's own methods."""
    from .methods import method, method_names
    from .study import load_study

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
    from .study import load_study
    from .study.arms import digest, plan

    study = load_study(arguments.config)
    planned = plan(study)
    counts = f"{len(planned.arms)} arms, {len(planned.runs)} runs, {len(planned.evaluated)} of them evaluated"
    print(f"{study.name}: {counts}; digest {digest(study)}.")


def _doctor(arguments: argparse.Namespace) -> None:
    """Look at everything a study needs, say what to change, and exit with 2 when something is wrong."""
    from .doctor import cluster, examine, this_machine

    results = Path("results")
    if arguments.slurm:
        examine(cluster(arguments.config, arguments.profile, results))
    else:
        examine(this_machine(arguments.config, results))


def _prepare(arguments: argparse.Namespace) -> None:
    """Write train.jsonl, validation.jsonl and benchmarks/*.jsonl."""
    from .stages import prepare_study
    from .study import load_study

    prepare_study(load_study(arguments.config), arguments.out)


def _start_model(arguments: argparse.Namespace) -> None:
    """Build the tiny model, teach it, save it with its tokenizer."""
    from .stages import build_start_model
    from .study import load_study

    study = load_study(arguments.config)
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    build_start_model(study, seed, arguments.data, arguments.out)


def _train(arguments: argparse.Namespace) -> None:
    """Train runs, or continue each where it was stopped; a finished run is left as it is."""
    from .files import atomic_json
    from .stages import train_run
    from .study import load_study
    from .train.stopping import Stop, deadline

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    if len(seeds) > 1 and "{seed}" not in arguments.run_dir:
        raise UserError("--run-dir: several seeds need a folder each; write {seed} where the seed belongs.")
    trained = {}
    with Stop(deadline(arguments.time_limit)) as stop:
        for seed in seeds:
            run_dir, start = (
                text and text.replace("{seed}", str(seed)) for text in (arguments.run_dir, arguments.start)
            )
            trained[seed] = train_run(study, arguments.arm, seed, Path(run_dir), start, arguments.data, stop)
    if arguments.done:
        atomic_json(arguments.done, trained)


def _evaluate(arguments: argparse.Namespace) -> None:
    """Judge models in one engine; those already judged under the same protocol are not sampled again."""
    from .evaluate.run import evaluate
    from .study import load_study

    models = {}
    for item in arguments.models:
        name, separator, folder = item.rpartition("=")
        if not separator:
            raise UserError(f"evaluate: {item!r} is not NAME=MODEL_DIR.")
        models[name] = Path(folder)
    evaluate(load_study(arguments.config), models, arguments.data, arguments.out, _share(arguments.part))


def _share(text: str | None) -> tuple[int, int] | None:
    """`2/8` → (2, 8)."""
    if text is None:
        return None
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and int(number) < int(parts)):
        raise UserError(f"--part: {text!r} is not I/N with I from 0 to N − 1.")
    return int(number), int(parts)


def _probe(arguments: argparse.Namespace) -> None:
    """Sample a batch, go off it by some updates, and measure it under every ratio; nothing is trained by it."""
    from .study import load_study
    from .train.probe import probe

    probe(load_study(arguments.config), arguments.seed, arguments.start, arguments.data, arguments.out)


def _show(arguments: argparse.Namespace) -> None:
    """Accuracy with intervals, outcomes and the protocol; paired differences between several; their samples."""
    from .evaluate import compare, reading

    entries = reading.find(arguments.paths)
    reading.only(entries, arguments.benchmark)
    differing = reading.same_protocol(entries, arguments.anyway)
    first = compare.reference(entries, arguments.against)
    if arguments.page:
        from .evaluate.page import write_page

        print(write_page(entries, arguments.page))
    elif arguments.json:
        print(json.dumps(compare.data(entries, first, differing), indent=1, ensure_ascii=False))
    else:
        from .evaluate.show import comparison, detail

        print(detail(first) if len(entries) == 1 else comparison(entries, first, differing), end="")


def _inspect(arguments: argparse.Namespace) -> None:
    """Write a page of samples whose tokens are coloured by ratio, advantage, clip and mask."""
    from .inspect import write_page

    print(write_page(arguments.run, arguments.step, arguments.out))


def _grade(arguments: argparse.Namespace) -> None:
    """Compare answers with gold answers: a `prediction` as it stands, a `completion` by its last box."""
    from .verify import MathVerifier, Options
    from .verify.grade import grade

    options = Options(relative_tolerance=arguments.relative_tolerance, several=arguments.several)
    with MathVerifier(arguments.workers, arguments.seconds) as verifier:
        counts = grade(arguments.file, arguments.out, verifier, options)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))


def _figure(arguments: argparse.Namespace) -> None:
    """Draw a figure as PDF and PNG, or write a table as CSV and Markdown."""
    from .figures.catalogue import draw
    from .study import load_study

    draw(arguments.name, load_study(arguments.config), arguments.results, arguments.out)


def _report(arguments: argparse.Namespace) -> None:
    """Put figures, tables, claims, protocol and provenance on one self-contained page."""
    from .report import write_report
    from .study import load_study
    from .track.mirror import tracking_uri

    study = load_study(arguments.config)
    tracking = tracking_uri(study, arguments.results)
    write_report(study, arguments.results, arguments.captions, arguments.out, tracking)


def _explain(arguments: argparse.Namespace) -> None:
    """Print the records, seeds, commits and commands behind one cell."""
    from .report.explain import explain

    print(explain(arguments.table, arguments.cell))


def _compare(arguments: argparse.Namespace) -> None:
    """Print what differs between two studies beyond noise."""
    from .files import atomic_text
    from .report.studies import compare_studies

    frame, text = compare_studies(*arguments.studies)
    if arguments.out:
        atomic_text(arguments.out, frame.to_csv(index=False))
    print(text)


def _freeze(arguments: argparse.Namespace) -> None:
    """Everything that figures and tables are drawn from, in one file."""
    from .report.freeze import freeze

    manifest = freeze(arguments.results, arguments.out)
    print(f"{arguments.out}: {len(manifest['files'])} files of {manifest['study']}.")


def _thaw(arguments: argparse.Namespace) -> None:
    """Verify checksums, unpack, and draw everything anew beside what was frozen, in `redrawn/`."""
    from .figures import TABLES
    from .figures.catalogue import draw
    from .report.freeze import thaw
    from .study import load_study

    manifest = thaw(arguments.archive, arguments.out)
    study = load_study(arguments.out / "study.yaml")
    for name in (*study.figures, *TABLES):
        draw(name, study, arguments.out, arguments.out / "redrawn" / name)
    print(f"{arguments.out}: {len(manifest['files'])} files verified; figures and tables are in `redrawn/` there.")


def _track(arguments: argparse.Namespace) -> None:
    """Mirror metrics, figures and tables into MLflow; what is there already is not doubled."""
    from .study import load_study
    from .track.mirror import mirror

    mirror(load_study(arguments.config), arguments.results)
    arguments.done.write_text("done\n")


def _calibrate(arguments: argparse.Namespace) -> None:
    """Repeat the choice of the study's regime."""
    from .calibrate import calibrate
    from .study import load_study

    calibrate(load_study(arguments.config), arguments.work, arguments.out)


def _schema(arguments: argparse.Namespace) -> None:
    """Print the JSON schema that editors use, or the reference that people read."""
    from .study.reference import markdown
    from .study.schema import Study

    if arguments.markdown:
        print(markdown(), end="")
        return
    print(json.dumps(Study.model_json_schema(), indent=1))


if __name__ == "__main__":
    sys.exit(main())
