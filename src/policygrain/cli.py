"""The command line. Each command runs one stage of the pipeline or shows results, and works without Snakemake."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence

from . import __version__, left
from .commands import COMMANDS, listing, note_job
from .errors import Stopped, UserError, did_you_mean

STOPPED = Stopped.exit_code
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code; ``argv`` is the command line's by default.

    The code is 2 after a UserError, 75 if a run was stopped and can be resumed, 130 after Ctrl-C, and 141 if the reader
    of the output has closed the pipe.
    """
    # Importing torch and transformers creates a million permanent objects; garbage collection during the imports takes
    # a sixth of the start-up time of a short run. `load_model` enables the collector again.
    gc.disable()
    try:
        _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except UserError as error:
        return _failed(str(error), error.exit_code)
    except Stopped as stopped:
        return _failed(f"{stopped} The same command resumes.", STOPPED)
    except ModuleNotFoundError as error:
        if (
            importlib.util.find_spec("snakemake") is not None
        ):  # the pipeline is installed, so another package is missing
            raise
        return _failed(
            f"this command needs the pipeline: pip install './policygrain[study]' beside the clone ({error}).", 2
        )
    except KeyboardInterrupt:
        return _failed("interrupted; run the same command again to continue.", INTERRUPTED)
    except BrokenPipeError:  # the reader of the output, such as `| head`, has ended
        os._exit(PIPE_CLOSED)  # without the interpreter's message about the rest of the output
    except OSError as error:
        if error.errno is None:
            raise
        return _failed(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}.", 2)
    finally:
        gc.enable()
    return 0


def _run(argv: Sequence[str]) -> None:
    """Parse the options of the chosen command and run it."""
    parser = argparse.ArgumentParser(
        prog="policygrain",
        usage="policygrain [--help] [--version] COMMAND ...",
        description="Compare reinforcement-learning objectives for reasoning models over several seeds.",
        epilog=listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"policygrain {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="policygrain", help=argparse.SUPPRESS)
    called = next((word for word in argv if not word.startswith("-")), "")
    if called in COMMANDS:
        COMMANDS[called].add_to(commands)
    elif called and called == argv[0]:
        if called in left.COMMANDS:
            raise UserError(f"{called!r} {left.COMMANDS[called]}.")
        raise UserError(f"there is no command {called!r}.{did_you_mean(called, COMMANDS)}")
    arguments = parser.parse_args(argv)
    if os.environ.get("SLURM_PROCID") == "0":
        # The first line of a job's log. Snakemake shows SLURM's own log as well, unless the rule's log is empty.
        job = os.environ["SLURM_JOB_ID"]
        print(f"{time.strftime('%F %T')} on {os.uname().nodename}, job {job}", file=sys.stderr)
    note_job(arguments)
    arguments.run(arguments)


def _failed(message: str, code: int) -> int:
    """Print the message to standard error; returns ``code``."""
    print(f"policygrain: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
