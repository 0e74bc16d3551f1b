"""A command is a function with its options, and its docstring is the help; options that several commands have."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from inspect import getdoc
from pathlib import Path
from typing import Any, NamedTuple

Option = Callable[[ArgumentParser], object]


class Command(NamedTuple):
    """A function and the options that it reads."""

    run: Callable[[Namespace], None]
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """The function's name with hyphens in place of underscores, none at its ends."""
        return self.run.__name__.strip("_").replace("_", "-")

    @property
    def help(self) -> str:
        """The first line of the docstring."""
        return (getdoc(self.run) or "").partition("\n")[0]

    def add_to(self, commands: Any) -> None:
        """Add a parser with the options to ``commands``, the result of `add_subparsers`."""
        parser = commands.add_parser(self.name, help=self.help, description=getdoc(self.run))
        parser.set_defaults(run=self.run)
        for add in self.options:
            add(parser)


def command(*options: Option) -> Callable[[Callable[[Namespace], None]], Command]:
    """Make a command of a function that imports what it needs when it is called."""
    return lambda run: Command(run, options)


def option(flags: str, help: str | None = None, **settings: Any) -> Option:
    """An option, or an argument without hyphens; ``settings`` are those of `ArgumentParser.add_argument`.

    ``flags``: its names, with spaces between them.
    """
    return lambda parser: parser.add_argument(*flags.split(), help=help, **settings)


def path(flags: str, help: str, **settings: Any) -> Option:
    """An option that is a file or folder."""
    return option(flags, help, type=Path, **settings)


def flag(flags: str, help: str) -> Option:
    """An option without a value."""
    return option(flags, help, action="store_true")


def actions(*commands: Command) -> Option:
    """A command's own commands, one of which has to be named. It is called instead of the command."""

    def add(parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(required=True, metavar="ACTION")
        for action in commands:
            action.add_to(parsers)

    return add


def one_of(*options: Option) -> Option:
    """Options that exclude each other."""

    def add(parser: ArgumentParser) -> None:
        group: Any = parser.add_mutually_exclusive_group()
        for add_option in options:
            add_option(group)

    return add


@contextmanager
def job(done: Path | None, names: Collection[str]) -> Iterator[dict[str, str]]:
    """Context of a job that makes the results ``names``; it fills in their digests.

    At the end they are written to the file ``done``, which says that the job has ended; None: no such file is wanted.
    """
    from ..results.job_state import begin, write_done

    digests: dict[str, str] = {}
    if done:
        begin(done, names)
    yield digests
    if done:
        write_done(done, digests)


CONFIG = path("--config", "study file (default: config.yaml)", default=Path("config.yaml"))
RESULTS = path("--results", "the study's results (default: results/NAME)")
ARM = option("--arm", "method, or arm of the study (default: the study's first)")
RUN_DIR = path("--run-dir", "folder of the run (default: where the study's results have it)")
DONE = path("--done", "file to write at the end")
JSON = flag("--json", "everything, as JSON")
SEEDS = option("--seeds --seed", "seeds (default: the study's first)", type=int, nargs="+", metavar="SEED")
