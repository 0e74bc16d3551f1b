"""What a worker does that checks the tests of a problem: they run its solution, and programs that solve nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..sandbox import Function
from ..sandbox.inside import Opaque, decode, encode
from .options import Options
from .programs import LARGEST_FILE, Candidate, never_called, run_tests, warm_up, where

__all__ = ["CONSTANTS", "LARGEST_FILE", "grade_pair", "warm_up"]

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


def grade_pair(limits: str, solution: str, options: Options) -> str:
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
    """What is wrong with tests that a program passes without a look at its arguments; empty if none does."""
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
    """What is wrong with tests that a right solution fails; empty if it passes."""
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
