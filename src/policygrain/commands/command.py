"""Commands as functions with options, whose docstrings are the help; and options that several commands have."""

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
    """Decorator that makes a function a command with these options."""
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
    """Subcommands, one of which has to be named and is called instead of the command."""

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
    """Context of a job that makes the results ``names``; its body adds the digest of each to the context's value.

    At the end the digests are written to ``done``, the marker file of the finished job. None: no file is written.
    """
    from ..job_state import begin, write_done

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
