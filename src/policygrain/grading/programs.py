"""Worker of the code grader: the tests run in this process and call the program, which runs in a sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .grader import UNREADABLE_GOLD, Options, Outcome
from .sandbox import Function, isolation

LARGEST_FILE = 16 * 2**20  # bytes: a program is handed over in a file
FAILURES: dict[str, Outcome] = {
    "syntax": "unparsable",
    "too_long": "unparsable",
    "timeout": "timeout",
    "memory": "error",
    "output": "error",
}
CALL_IT = "Call it in `tests`, or define check(candidate) there; other functions and classes of tests are not run."


def warm_up() -> None:
    """Check once that programs can be isolated, and import numpy, which tests of published sets import."""
    import numpy  # noqa: F401

    isolation()


class Candidate:
    """The function that tests call, with the number of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Count the call, and return the function's value or raise its exception."""
        self.calls += 1
        return self.function(*arguments, **keywords)


def run_tests(options: Options, candidate: Candidate) -> BaseException | None:
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


def where(error: BaseException, options: Options) -> str:
    """The line of the tests at which an exception was raised, and the exception, in one line of text."""
    place, number, traceback = "", 0, error.__traceback__
    if isinstance(error, SyntaxError) and error.filename in ("<tests>", "<setup>"):
        place, number = error.filename, error.lineno or 0
    while isinstance(traceback, TracebackType):
        if (file := traceback.tb_frame.f_code.co_filename) in ("<tests>", "<setup>"):
            place, number = file, traceback.tb_lineno
        traceback = traceback.tb_next
    lines = (options.setup if place == "<setup>" else options.tests).splitlines()
    text = lines[number - 1].strip()[:80] if 0 < number <= len(lines) else ""
    message = " ".join(str(error).split())[:200]
    return f"line {number} of its {place.strip('<>')} (`{text}`): {type(error).__name__}{': ' * bool(message)}{message}"


def never_called(error: BaseException | None, options: Options) -> str:
    """Message for tests that never call the function: an error of the problem, whatever the program is."""
    name = options.entry_point
    if error is None:
        return f"its tests never call `{name}`. {CALL_IT}"
    hint = "" if isinstance(error, Exception) else f" {CALL_IT}"  # SystemExit: unittest.main()
    return f"its tests fail before they call `{name}`: {where(error, options)}.{hint}"


def grade_pair(limits: str, program: str, options: Options) -> str:
    """The outcome of a program: `correct` if every test passes. ``limits``: seconds and MiB, as text.

    If the tests never call the function: UNREADABLE_GOLD and a message.
    """
    seconds, mib = limits.split()
    with Function(program, options.entry_point, float(seconds), int(mib)) as function:
        if function.failure is not None:
            return FAILURES.get(function.failure, "incorrect")
        candidate = Candidate(function)
        error = run_tests(options, candidate)
        if isinstance(error, MemoryError) and function.failure is None:
            raise error  # the tests, not the program, ran out of memory
        if not candidate.calls:
            return UNREADABLE_GOLD + never_called(error, options)
        if function.failure is not None:  # tests that expect an exception may have caught it
            return FAILURES.get(function.failure, "incorrect")
    return "incorrect" if error is not None else "correct"
