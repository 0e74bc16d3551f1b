"""What makes something: the stages of the pipeline, each of which works without Snakemake."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..errors import UserError
from . import Command, study


def add(command: Command) -> None:
    """Add these commands to the parser."""
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
    # torchrun takes `--start`, wherever it stands, for the beginning of an option of its own.
    added.add_argument(
        "--start-model", "--start", dest="start", help="start model (default: the study's; a tiny one is built)"
    )
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
    added.add_argument("--engines", type=int, metavar="N", help="processes that draw (default: one for each GPU here)")
    added.add_argument("models", nargs="+", metavar="NAME=MODEL_DIR", help="what to judge")

    added = command("probe", _probe, "look at one batch with every ratio: spread of ratios, noise of gradients")
    study(added)
    added.add_argument("--seed", type=int, required=True, help="of the batch")
    added.add_argument("--start", required=True, help="model that samples it")
    added.add_argument("--data", type=Path, required=True, help="folder written by `prepare`")
    added.add_argument("--out", type=Path, required=True, help="JSON file")

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

    added = command("track", _track, "mirror a study's records into MLflow")
    study(added)
    added.add_argument("--results", type=Path, required=True, help="the study's results")
    added.add_argument("--done", type=Path, required=True, help="JSON: where in MLflow things are")

    added = command("calibrate", _calibrate, "choose clip bands and learning rate on validation problems")
    study(added)
    added.add_argument("--work", type=Path, required=True, help="folder for pilot runs")
    added.add_argument("--out", type=Path, required=True, help="JSON of what was measured and chosen")


def _prepare(arguments: argparse.Namespace) -> None:
    """Write train.jsonl, validation.jsonl and benchmarks/*.jsonl."""
    from ..stages import prepare_study
    from ..study import load_study

    prepare_study(load_study(arguments.config), arguments.out)


def _start_model(arguments: argparse.Namespace) -> None:
    """Build the tiny model, teach it, save it with its tokenizer."""
    from ..stages import build_start_model
    from ..study import load_study

    study = load_study(arguments.config)
    seed = study.seeds[0] if arguments.seed is None else arguments.seed
    build_start_model(study, seed, arguments.data, arguments.out)


def _train(arguments: argparse.Namespace) -> None:
    """Train runs, or continue each where it was stopped; a finished run is left as it is.

    Under torchrun or srun all processes train each run together.
    """
    from ..files import atomic_json
    from ..stages import train_run
    from ..study import load_study
    from ..train.launch import process_group
    from ..train.ranks import on_rank_0, ranks
    from ..train.stopping import Stop, deadline

    study = load_study(arguments.config)
    seeds = arguments.seeds or study.seeds[:1]
    if len(seeds) > 1 and "{seed}" not in arguments.run_dir:
        raise UserError("--run-dir: several seeds need a folder each; write {seed} where the seed belongs.")
    trained = {}
    with Stop(deadline(arguments.time_limit)) as stop, process_group():
        if len(seeds) > 1 and study.training.engine == "vllm" and ranks()[1] > 1:
            # A vLLM engine that goes takes the process group along, in which the ranks would train the next seed.
            raise UserError("--seeds: several ranks that sample with vLLM train one seed per process.")
        for seed in seeds:
            run_dir, start = (
                text and text.replace("{seed}", str(seed)) for text in (arguments.run_dir, arguments.start)
            )
            trained[seed] = train_run(study, arguments.arm, seed, Path(run_dir), start, arguments.data, stop)
        if arguments.done:
            on_rank_0(lambda: atomic_json(arguments.done, trained))


def _evaluate(arguments: argparse.Namespace) -> None:
    """Judge models in one engine for each GPU; those already judged under the same protocol are not sampled again."""
    from ..evaluate.parallel import draw_side_by_side, gpus
    from ..evaluate.run import evaluate
    from ..study import load_study

    models = dict(map(_named_model, arguments.models))
    study, part, engines = load_study(arguments.config), _share(arguments.part), arguments.engines or len(gpus()) or 1
    if engines > 1:
        files = ["--config", str(arguments.config), "--data", str(arguments.data), "--out", str(arguments.out)]
        draw_side_by_side(["evaluate", *files, *arguments.models], part or (0, 1), engines)
        if part is not None:
            return
    evaluate(study, models, arguments.data, arguments.out, part)


def _named_model(text: str) -> tuple[str, Path]:
    """`NAME=MODEL_DIR` → (NAME, MODEL_DIR). A run's name, `ARM/seedS`, may have a setting in it, and its folder too."""
    found = re.fullmatch(r"(.*?/seed\d+|[^=]+)=(.+)", text)
    if found is None:
        raise UserError(f"evaluate: {text!r} is not NAME=MODEL_DIR.")
    return found[1], Path(found[2])


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
    from ..study import load_study
    from ..train.probe import probe

    probe(load_study(arguments.config), arguments.seed, arguments.start, arguments.data, arguments.out)


def _figure(arguments: argparse.Namespace) -> None:
    """Draw a figure as PDF and PNG, or write a table as CSV and Markdown."""
    from ..figures.catalogue import draw
    from ..study import load_study

    draw(arguments.name, load_study(arguments.config), arguments.results, arguments.out)


def _report(arguments: argparse.Namespace) -> None:
    """Put figures, tables, claims, protocol and provenance on one self-contained page."""
    from ..report import write_report
    from ..study import load_study

    write_report(load_study(arguments.config), arguments.results, arguments.captions, arguments.out)


def _track(arguments: argparse.Namespace) -> None:
    """Mirror metrics, figures and tables into MLflow; what is there already is not doubled."""
    from ..files import atomic_json
    from ..study import load_study
    from ..track.mirror import mirror

    atomic_json(arguments.done, mirror(load_study(arguments.config), arguments.results))


def _calibrate(arguments: argparse.Namespace) -> None:
    """Repeat the choice of the study's regime."""
    from ..study import load_study
    from ..train.calibration import calibrate

    calibrate(load_study(arguments.config), arguments.work, arguments.out)
