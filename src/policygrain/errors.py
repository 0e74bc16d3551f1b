"""The one error a user sees: a message that names the key, file or line and says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend. The command line prints its message alone, without a traceback."""

    exit_code = 2


class Stopped(Exception):
    """Work that was asked to end early and has saved what it had; the same command goes on with it."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean …?' where something known is close to ``word``, else the list of what is known."""
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return f" Did you mean {' or '.join(repr(c) for c in close)}?"
    return f" Known: {', '.join(names)}."
