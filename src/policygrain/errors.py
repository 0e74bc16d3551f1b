"""Exceptions with messages for users, which name the key, file or line and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can correct. The command line prints only its message, without a traceback."""

    exit_code = 2


class NoResults(UserError):
    """A stage of the study has not run, so a table or figure has nothing to show."""


class Stopped(Exception):
    """A run that ended early; the same command resumes it from what it has saved."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean …?' if names in ``known`` are similar to ``word``, else a list of the known names."""
    names = sorted(set(known))
    close = [name for name in names if name.lower() == word.lower()]
    close = close or difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return f" Did you mean {' or '.join(repr(c) for c in close)}?"
    return f" Known: {', '.join(names)}."
