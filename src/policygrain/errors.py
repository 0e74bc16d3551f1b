"""Exceptions with messages for users, which name the key, file or line and a remedy."""

from __future__ import annotations

import difflib
import functools
import re
import reprlib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import yaml


class UserError(Exception):
    """A mistake that the user can correct. The command line prints only its message, without a traceback."""

    exit_code = 2


class NoResults(UserError):
    """A stage of the study has not run, so a table or figure has nothing to show."""


class Stopped(Exception):
    """A run that ended early; the same command resumes it from what it has saved."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again


@functools.cache
def left() -> dict[str, str]:
    """Name of a key, figure or command that left or has another name → what became of it."""
    return dict(yaml.safe_load((resources.files(__package__) / "left.yaml").read_text(encoding="utf-8")))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What became of ``word``, or ' Did you mean …?' if names in ``known`` are similar, else a list of these names."""
    if word in left():
        return f" It {left()[word]}."
    names = sorted(set(known))
    close = [name for name in names if name.lower() == word.lower()]
    close = close or difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    if close:
        return f" Did you mean {' or '.join(repr(c) for c in close)}?"
    return f" Known: {', '.join(names)}."


def explained(error: ValueError, where: str = "") -> str:
    """Lines `KEY: what is wrong` of an error by pydantic, or by a check of its own, on the value of ``where``."""
    own = {"type": "value_error", "loc": (), "ctx": {"error": error}}
    found = error.errors() if hasattr(error, "errors") else [own]
    return "\n".join(_line(one, ".".join(map(str, [where, *one["loc"]])).removeprefix(".")) for one in found)


def _line(error: Mapping[str, Any], where: str) -> str:
    kind, value = error["type"], error.get("input")
    if kind == "value_error":
        said = str(error["ctx"]["error"])
        # A check of a section begins with the key of the section that is wrong.
        between = "" if not where else "." if re.match(r"[^ ]+: ", said) else ": "
        return f"{where}{between}{said}{'' if said.endswith(('.', '?')) else '.'}"
    if where.endswith(".[key]"):
        *above, _ = error["loc"][:-1]
        return f"{'.'.join(map(str, above))}: as a key, {value!r} is not a valid name: {error['msg']}."
    if kind == "missing":
        return f"{where}: this key is missing."
    if kind == "literal_error" and isinstance(value, str):
        known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"{where}: {value!r} is not a valid value.{did_you_mean(value, known)}"
    if kind == "list_type" and isinstance(value, str | int | float):
        return f"{where}: must be a list, such as [{value}]."
    if kind == "string_type" and isinstance(value, bool):
        return f"{where}: must be text; YAML reads on, off, yes and no as true and false, so quote it."
    return f"{where}: {error['msg']} (got {reprlib.repr(value)})."
