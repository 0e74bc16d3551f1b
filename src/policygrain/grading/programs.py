"""What a worker of the code grader does: tests in this process, the program as a function in a sandbox."""

from __future__ import annotations

from typing import Any

from ..sandbox import Function, TimeLimit, isolation
from .options import Options
from .outcome import Outcome

LARGEST_FILE = 16 * 2**20  # bytes: a program is handed over in a file
FAILURES: dict[str, Outcome] = {
    "syntax": "unparsable",
    "too_long": "unparsable",
    "timeout": "timeout",
    "memory": "error",
    "output": "error",
}


def warm_up() -> None:
    """Find out how programs are kept apart, and import what tests of published sets import."""
    import numpy  # noqa: F401

    isolation()


def grade_pair(limits: str, program: str, options: Options) -> Outcome:
    """The outcome of a program: `correct` if every test passes. ``limits``: seconds and MiB."""
    seconds, mib = limits.split()
    namespace: dict[str, Any] = {"__name__": "tests"}
    # Helpers of the problem's own, which tests may call.
    exec(compile(options.setup, "<setup>", "exec"), namespace)
    with Function(program, options.entry_point, float(seconds), int(mib)) as function:
        if function.failure is not None:
            return FAILURES.get(function.failure, "incorrect")
        namespace[options.entry_point] = function
        try:
            exec(compile(options.tests, "<tests>", "exec"), namespace)
            if callable(check := namespace.get("check")) and check is not function:
                check(function)
        except TimeLimit:
            return "timeout"
        except Exception:
            return FAILURES.get(function.failure or "", "incorrect")
    return "correct"
