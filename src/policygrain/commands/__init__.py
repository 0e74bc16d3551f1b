"""The commands. They import what they need when they are called, so that `policygrain --help` is fast."""

from . import data, study
from .app import app

GROUPS = (study.GROUP, data.GROUP, study.STAGES)  # in the order of the help
app.registered_commands.sort(key=lambda command: GROUPS.index(str(command.rich_help_panel)))

__all__ = ["app", "data", "study"]
