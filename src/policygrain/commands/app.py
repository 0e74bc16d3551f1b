"""The application of the command line, and the options that several commands have."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from .. import __version__
from ..errors import Stopped, UserError
from .workflow import PARENT

P = ParamSpec("P")
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE
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


def command(group: str, of: typer.Typer = app) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorator that makes a function a command, named and documented as the function, in a group of the help.

    Messages about errors begin with the name of the application ``of``.
    """

    def failed(message: str, code: int) -> typer.Exit:
        print(f"{of.info.name}: {message}", file=sys.stderr)
        return typer.Exit(code)

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def run(*args: P.args, **options: P.kwargs) -> None:
            if os.environ.get(PARENT) == str(os.getppid()):
                # A stage ends with its Snakemake: left alone, it would write after the next one has begun.
                ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGTERM)
            try:
                function(*args, **options)
                sys.stdout.flush()
            except UserError as error:
                raise failed(str(error), error.exit_code) from None
            except Stopped as stopped:
                raise failed(f"{stopped} The same command resumes.", stopped.exit_code) from None
            except KeyboardInterrupt:
                raise failed("interrupted; run the same command again to continue.", INTERRUPTED) from None
            except BrokenPipeError:  # the reader of the output, such as `| head`, has ended
                os._exit(PIPE_CLOSED)  # without the interpreter's message about the rest of the output
            except OSError as error:
                if error.errno is None:
                    raise
                where = f"{error.filename}: " if error.filename else ""
                raise failed(f"{where}{error.strerror}.", 2) from None

        of.command(function.__name__.strip("_").replace("_", "-"), rich_help_panel=group)(run)
        return run

    return register


def option(help: str, *names: str, metavar: str | None = None) -> typer.models.OptionInfo:
    """An option that needs no more than a help text."""
    return typer.Option(*names, help=help, metavar=metavar)


CONFIG = Path("config.yaml")
Config = Annotated[Path, option("study file", "--config")]
Results = Annotated[Path | None, option("the study's results (default: results/NAME)", "--results")]
Json = Annotated[bool, option("everything, as JSON", "--json")]
