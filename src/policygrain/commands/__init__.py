"""The commands of the command line, in groups.

The modules import only the standard library, so that `policygrain --help` is fast; a command imports other modules when
it is called.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from types import ModuleType

from . import analysis, data, stages, study
from .command import Command

GROUPS: dict[str, ModuleType] = {
    "Study": study,
    "Models and data": data,
    "Results, and logs of any trainer": analysis,
    "Stages, which the workflow and make call; each works alone, too": stages,
}


def commands_of(module: ModuleType) -> dict[str, Command]:
    """The commands of a module by name. Actions of a command (functions that begin with an underscore) are left out."""
    members = vars(module).items()
    return {value.name: value for key, value in members if isinstance(value, Command) and not key.startswith("_")}


COMMANDS = {name: command for module in GROUPS.values() for name, command in commands_of(module).items()}


def listing() -> str:
    """All commands with their help, in groups."""
    width, space = shutil.get_terminal_size().columns - 2, max(map(len, COMMANDS)) + 4
    lines = []
    for heading, module in GROUPS.items():
        lines += [f"{heading}:"]
        for name, command in commands_of(module).items():
            first, *rest = textwrap.wrap(command.help, max(20, width - space), break_on_hyphens=False)
            lines += [f"  {name:{space - 2}}{first}", *(" " * space + part for part in rest)]
        lines += [""]
    return "\n".join(lines)


def note_job(arguments: argparse.Namespace) -> None:
    """Lock the study's folder against other workflows until this job ends, if a workflow called it (with `--done`)."""
    if done := getattr(arguments, "done", None):
        from ..job_state import start_job

        start_job(done[0] if isinstance(done, list) else done)
