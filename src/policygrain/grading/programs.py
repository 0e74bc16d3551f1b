"""Worker of the code grader: tests run in this process, the program as a function in a sandbox.

It grades a program, or checks the tests of a problem: they run its solution, and programs that solve nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from ..sandbox import Function, isolation
from ..sandbox.inside import Opaque, decode, encode
from .grader import UNREADABLE_GOLD, Options, Outcome

CHECK = "check "
LARGEST_FILE = 16 * 2**20  # bytes: a program is handed over in a file
FAILURES: dict[str, Outcome] = {
    "syntax": "unparsable",
    "too_long": "unparsable",
    "timeout": "timeout",
    "memory": "error",
    "output": "error",
}
CALL_IT = "Call it in `tests`, or define check(candidate) there; other functions and classes of tests are not run."

# A program that returns one of these, whatever its arguments are, solves no problem.
CONSTANTS = ("None", "True", "False", "0", "1", "float('nan')", "''", "[]", "[[]]", "()", "{}", "set()")
# A solution in the sandbox, as a function that also says why it cannot run and whether it has changed its arguments.
WATCHED = """
import copy
failed, space = None, {{"__name__": "program"}}
try:
    exec(compile({program!r}, "<solution>", "exec"), space)
    space[{name!r}]
except BaseException as error:
    failed = f"{{type(error).__name__}}: {{error}}"
    if isinstance(error, SyntaxError):
        failed += f" (line {{error.lineno}})"

def {name}(*arguments, **keywords):
    if failed is not None:
        return None, False, failed
    before = copy.deepcopy((arguments, keywords))
    value = space[{name!r}](*arguments, **keywords)
    return value, (arguments, keywords) != before, None
"""


def warm_up() -> None:
    """Find out how programs are kept apart, and import what tests of published sets import."""
    import numpy  # noqa: F401

    isolation()


class Candidate:
    """The function that tests call, with the number of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function; returns or raises what it does."""
        self.calls += 1
        return self.function(*arguments, **keywords)


def run_tests(options: Options, candidate: Candidate) -> BaseException | None:
    """Run the tests; the exception that they raise, SystemExit included, or None if they pass."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    process = os.getpid()
    try:
        # Helpers of the problem's own, which tests may call.
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
    """Message on tests that did not call the function, which are wrong for any program."""
    name = options.entry_point
    if error is None:
        return f"its tests never call `{name}`. {CALL_IT}"
    hint = "" if isinstance(error, Exception) else f" {CALL_IT}"  # SystemExit: unittest.main()
    return f"its tests fail before they call `{name}`: {where(error, options)}.{hint}"


def grade_pair(limits: str, program: str, options: Options) -> str:
    """The outcome of a program: `correct` if every test passes. ``limits``: seconds and MiB.

    UNREADABLE_GOLD and why, if the tests do not call the function. With ``limits`` that begin with CHECK, what is wrong
    with the tests.
    """
    if limits.startswith(CHECK):
        return check_tests(limits.removeprefix(CHECK), program, options)
    seconds, mib = limits.split()
    with Function(program, options.entry_point, float(seconds), int(mib)) as function:
        if function.failure is not None:
            return FAILURES.get(function.failure, "incorrect")
        candidate = Candidate(function)
        error = run_tests(options, candidate)
        if isinstance(error, MemoryError) and function.failure is None:
            raise error  # of the tests
        if not candidate.calls:
            return UNREADABLE_GOLD + never_called(error, options)
        if function.failure is not None:  # tests that expect an exception may have caught it
            return FAILURES.get(function.failure, "incorrect")
    return "incorrect" if error is not None else "correct"


def check_tests(limits: str, solution: str, options: Options) -> str:
    """`correct`, or what is wrong with the tests of a problem, in words, to follow its name.

    ``solution`` must pass; without one, programs that solve nothing must not. ``limits``: seconds and MiB.
    """
    if not solution:
        return refuse_constants(options) or "correct"
    seconds, mib = limits.split()
    program = WATCHED.format(program=solution, name=options.entry_point)
    with Function(program, options.entry_point, float(seconds), int(mib)) as function:
        return accept_solution(function, options, limits) or "correct"


def refuse_constants(options: Options) -> str:
    """Message on tests that a program passes without using its arguments; empty if none does."""
    for constant in CONSTANTS:
        candidate = Candidate(partial(constant_value, constant))
        error = run_tests(options, candidate)
        if not candidate.calls:
            return never_called(error, options)
        if error is None:
            return f"a program that is only `return {constant}` passes its tests. Add a test that it fails."
    return ""


def constant_value(expression: str, /, *_: Any, **__: Any) -> Any:
    """The value of an expression, whatever else is given."""
    return eval(expression)


def accept_solution(function: Function, options: Options, limits: str) -> str:
    """Message on tests that a correct solution fails; empty if it passes."""
    notes: dict[str, None] = {}
    failures: list[str] = []

    def call(*arguments: Any, **keywords: Any) -> Any:
        arguments, keywords = decode(encode((arguments, keywords)))  # as they cross
        for kind in opaque([arguments, keywords]):
            notes[f"its tests give the function a value of type {kind}, which cannot be handed over"] = None
        value, changed, failed = function(*arguments, **keywords)
        if failed is not None:
            failures.append(str(failed))
        for kind in opaque(value):
            notes[f"its solution returns a value of type {kind}, of which tests only see whether it is true"] = None
        if changed is True:
            notes["its solution changes its arguments, which tests do not see: they get what it returns"] = None
        return value

    candidate = Candidate(call)
    error = run_tests(options, candidate)
    seconds, mib = limits.split()
    if function.failure == "timeout":
        return f"its solution takes more than {float(seconds):g} s of processor time over all tests. Set `seconds`."
    if function.failure == "memory":
        return f"its solution needs more than {mib} MiB of memory."
    if function.failure is not None:
        return f"its solution is too long, ends its process or returns too much ({function.failure})."
    if failures:
        return f"its solution cannot be run: {failures[0]}. Programs have Python's standard library alone."
    if not candidate.calls:
        return never_called(error, options)
    if error is None:
        return ""
    crosses = f" ({'; '.join(notes)}. Values of Python's own types cross, as copies)" if notes else ""
    return f"its solution fails at {where(error, options)}{crosses}."


def opaque(value: Any) -> list[str]:
    """Names of the types of what did not cross, in a value that crossed."""
    if isinstance(value, Opaque):
        return [value.kind]
    if isinstance(value, dict):
        return [kind for item in value.items() for kind in opaque(item)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [kind for item in value for kind in opaque(item)]
    return []
