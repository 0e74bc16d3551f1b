"""The command line. Each command is one stage of the pipeline and works without Snakemake."""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
import time
from collections.abc import Callable

from .commands import look, make, plan
from .commands.data import add_commands
from .errors import Stopped, UserError

STOPPED = Stopped.exit_code


def main(argv: list[str] | None = None) -> int:
    """Run a command. The exit code is 2 for a user's mistake, explained in one message, and 75 for work to resume."""
    arguments = _parser().parse_args(argv)
    # Importing torch and transformers makes a million objects that live to the end; looking for garbage among them is a
    # sixth of a short run's start. `load_model` switches it on again.
    gc.disable()
    if os.environ.get("SLURM_PROCID") == "0":
        # The first line of a job's log. Snakemake shows SLURM's own log, too, unless the rule's is empty.
        print(f"{time.strftime('%F %T')} on {socket.gethostname()}, job {os.environ['SLURM_JOB_ID']}", file=sys.stderr)
    try:
        arguments.command(arguments)
    except UserError as error:
        print(f"policygrain: {error}", file=sys.stderr)
        return error.exit_code
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

    look.add(command)
    add_commands(commands)
    make.add(command)
    plan.add(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
