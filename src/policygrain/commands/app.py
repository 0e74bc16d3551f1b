"""The application of the command line, and the options that several commands have."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import Stopped, UserError

PARENT = "POLICYGRAIN_SNAKEMAKE"  # environment variable: the process of Snakemake, with which its jobs end
END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
SHELL = {"max_content_width": 120}
if not sys.stderr.isatty():  # tqdm reads this when it is imported; in a log, a line every ten seconds is enough
    os.environ.setdefault("TQDM_MININTERVAL", "10")

app = typer.Typer(name="policygrain", no_args_is_help=True, pretty_exceptions_enable=False, context_settings=SHELL)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    """Compare reinforcement-learning objectives for reasoning models over several seeds."""
    if version:
        print(f"policygrain {__version__}")
        raise typer.Exit


def call(of: typer.Typer, words: Sequence[str]) -> int:
    """Run a command of an application, and return its exit code (docs/troubleshooting.md).

    A mistake of the user, a stop, and an error of the operating system are one message.
    """
    if os.environ.get(PARENT) == str(os.getppid()):
        # A stage ends with its Snakemake: left alone, it would write after the next one has begun.
        ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGTERM)
    try:
        of(args=list(words), prog_name=of.info.name)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except UserError as error:
        message, code = str(error), error.exit_code
    except Stopped as stopped:
        message, code = f"{stopped} The same command resumes.", stopped.exit_code
    except OSError as error:
        if error.errno is None:
            raise
        message, code = f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}.", 2
    print(f"{of.info.name}: {message}", file=sys.stderr)
    return code


def option(help: str, *names: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names, help=help, metavar=metavar)


CONFIG = Path("config.yaml")
Config = Annotated[Path, option("study file", "--config")]
Results = Annotated[Path | None, option("the study's results (default: results/NAME)", "--results")]
Json = Annotated[bool, option("everything, as JSON", "--json")]
