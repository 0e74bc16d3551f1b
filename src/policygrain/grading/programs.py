"""Worker of the code grader: the tests run in this process and call the program, which runs in a sandbox."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import Any

from .grader import UNREADABLE_GOLD, Options, Outcome
from .sandbox import Function

CALL_IT = "Call it in `tests`, or define check(candidate) there; other functions and classes of tests are not run."
FAILURES: dict[str, Outcome] = {"SyntaxError": "unparsable", "IndentationError": "unparsable", "TabError": "unparsable"}
FAILURES |= {"timeout": "timeout", "MemoryError": "error", "output": "error"}


def run_tests(options: Options, candidate: Callable[..., Any]) -> BaseException | None:
    """Run the tests; the exception that they raise, SystemExit included, or None if they pass."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    process = os.getpid()
    try:
        # Helper functions of the problem, which tests may call.
        exec(compile(options.setup, "<setup>", "exec"), namespace)
        namespace[options.entry_point] = candidate
        exec(compile(options.tests, "<tests>", "exec"), namespace)
        if callable(check := namespace.get("check")) and check is not candidate:
            check(candidate)
    except BaseException as error:
        return error
    finally:
        if os.getpid() != process:
            os._exit(0)  # a child that the tests have forked
    return None


def never_called(error: BaseException | None, options: Options) -> str:
    """Message for tests that never call the function: an error of the problem, whatever the program is."""
    said = "its tests never call"
    if error is not None:
        lines = [f"line {f.lineno}: " for f in traceback.extract_tb(error.__traceback__) if f.filename == "<tests>"]
        said = f"its tests fail ({''.join(lines[-1:])}{error!r:.200}) before they call"
    return f"{said} `{options.entry_point}`. {CALL_IT}"


def grade_pair(limits: str, program: str, options: Options) -> str:
    """The outcome of a program: `correct` if every test passes. ``limits``: seconds and MiB, as text.

    If the tests never call the function: UNREADABLE_GOLD and a message.
    """
    seconds, mib = limits.split()
    with closing(Function(program, options.entry_point, float(seconds), int(mib))) as function:
        error = None
        if function.failure is None:
            error = run_tests(options, function)
            if isinstance(error, MemoryError) and function.failure is None:
                raise error  # the tests, not the program, ran out of memory
            if not function.calls:
                return UNREADABLE_GOLD + never_called(error, options)
        if function.failure is not None:  # tests that expect an exception may have caught it
            return FAILURES.get(function.failure, "incorrect")
    return "incorrect" if error is not None else "correct"
