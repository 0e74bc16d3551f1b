"""The code grader: a worker runs the problem's tests, and they call the response's program in a sandbox."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from textwrap import dedent
from types import ModuleType
from typing import Any, cast

from ..errors import UserError
from .grader import UNREADABLE_GOLD, Grader, Item, Options, Outcome
from .sandbox import Function, isolation
from .workers import Pool, Task

# Indentation, language (the second: after other text on the line) and content of a fenced block; of any language, so
# that no end is taken for a beginning. A block ends where a line that is not indented further begins with a fence.
_FENCED = re.compile(
    r"^([ \t]*+)(?:```[ \t]*+([\w+-]*+)[^`\n]*+|(?:(?!```)[^\n])++```[ \t]*+((?i:python3?|py)?)[ \t]*+)\n"
    r"(.*?)(?:^(?!\1(?: {4}|\t))[ \t]*+```|\Z)",
    re.DOTALL | re.MULTILINE,
)
_FUTURE = re.compile(r"^from __future__ import .*\n", re.MULTILINE)
_LANGUAGES = ("", "python", "py", "python3")
_END = re.compile(r"\n(?=class |def |async def |if __name__|print\(|#|@|```|assert )")  # of a function's body
WORKER_MEMORY = 4 * 2**30  # bytes, for tests, which contain all their inputs and expected values


class CodeGrader(Grader):
    """Runs programs against tests (docs/coding.md); ``answers`` grades the responses to problems without tests."""

    def __init__(
        self, workers: int | None = None, seconds: float = 20.0, mib: int = 1024, answers: Grader | None = None
    ) -> None:
        self.name = f"{answers.name + '; ' if answers else ''}code-6 ({isolation()}, {seconds:g} s, {mib} MiB)"
        self.seconds, self.mib, self.answers = seconds, mib, answers
        # The tests have the same time on top of the program's. Fresh: what they change does not affect other tests.
        self.pool = Pool(workers, 2 * seconds, WORKER_MEMORY, kind="code", fresh=True)

    def grade(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response. UserError if a problem has no tests, or tests that never call its function."""
        outcomes: dict[int, Outcome] = {}
        if answers := [i for i, item in enumerate(items) if not item.options.tests]:
            if self.answers is None:
                raise UserError(f"{items[answers[0]].name}: the problem has no tests to run a program against.")
            outcomes |= zip(answers, self.answers.grade([items[i] for i in answers]), strict=True)
        tasks: dict[int, Task] = {}
        for i, item in enumerate(items):
            if item.options.tests and (program := program_of(item.text, item.options)) is not None:
                tasks[i] = (f"{item.options.seconds or self.seconds} {self.mib}", program, item.options)
        for i, found in zip(tasks, self.pool.run([*tasks.values()]), strict=True):
            if found.startswith(UNREADABLE_GOLD):
                raise UserError(f"{items[i].name}: {found.removeprefix(UNREADABLE_GOLD)}")
            outcomes[i] = cast("Outcome", found)
        return [outcomes.get(i, "unparsable") for i in range(len(items))]

    def close(self) -> None:
        super().close()
        if self.answers is not None:
            self.answers.close()


def program_of(response: str, options: Options) -> str | None:
    """The program in a response (docs/coding.md), after the problem's ``setup``; None if there is none."""
    response = response.replace("\r\n", "\n")
    found = _FENCED.findall(response)
    blocks = [block for _, one, other, block in found if (one or other).lower() in _LANGUAGES and block.strip()]
    defines = re.compile(rf"^\s*(?:async )?(?:def|class)\s+{re.escape(options.entry_point)}\b", re.MULTILINE)
    for candidate in [*reversed(blocks), response]:
        if defines.search(candidate):
            return _joined(options.setup, dedent(candidate))
    body = blocks[-1] if blocks else response
    if not options.signature or not body.strip():
        return None
    return _joined(options.setup, options.signature + _END.split(body, maxsplit=1)[0])


def _joined(setup: str, program: str) -> str:
    """Both, after the program's imports from the future, which must be the first."""
    return f"{''.join(_FUTURE.findall(program))}{setup}\n{_FUTURE.sub('', program)}\n"


FAILURES: dict[str, Outcome] = {"timeout": "timeout", "MemoryError": "error", "output": "error"}
FAILURES |= dict.fromkeys(("SyntaxError", "IndentationError", "TabError"), "unparsable")


def run_tests(options: Options, candidate: Callable[..., Any]) -> BaseException | None:
    """Run the tests; the exception that they raise, SystemExit included, or None if they pass."""
    sys.modules["tests"] = module = ModuleType("tests")  # where dataclasses look for names
    namespace = vars(module)
    process = os.getpid()
    try:
        # Helper functions of the problem, which tests may call.
        exec(compile(options.setup, "<setup>", "exec", dont_inherit=True), namespace)
        namespace[options.entry_point] = candidate
        exec(compile(options.tests, "<tests>", "exec", dont_inherit=True), namespace)
        if callable(check := namespace.get("check")) and check is not candidate:
            check(candidate)
    except BaseException as error:
        return error
    finally:
        if os.getpid() != process:
            os._exit(0)  # a child that the tests have forked
    return None


def _never_called(error: BaseException | None, options: Options) -> str:
    """Message for tests that never call the function: an error of the problem, whatever the program is."""
    said = "never call"
    if error is not None:
        traced = traceback.extract_tb(error.__traceback__)
        *_, line = ["", *(f"line {frame.lineno}: " for frame in traced if frame.filename == "<tests>")]
        said = f"fail ({line}{error!r:.200}) before they call"
    remedy = "Call it in `tests`, or define check(candidate) there; other functions and classes are not run."
    return f"its tests {said} `{options.entry_point}`. {remedy}"


def grade_pair(limits: str, program: str, options: Options) -> str:
    """In a worker, the outcome of a program, or UNREADABLE_GOLD and why; ``limits``: seconds and MiB."""
    seconds, mib = limits.split()
    for pause in (1.0, 5.0, 0.0):  # no process, or no memory, for a moment
        try:
            made = Function(program, options.entry_point, float(seconds), int(mib))
            break
        except OSError as failed:  # no program has run
            said = str(failed)
            time.sleep(pause)
    else:
        return f"{UNREADABLE_GOLD}bubblewrap failed: {said}"
    with closing(made) as function:
        error = None
        if function.failure is None:
            error = run_tests(options, function)
            if isinstance(error, MemoryError) and function.failure is None:
                raise error  # the tests, not the program, ran out of memory
            if not function.calls:
                return UNREADABLE_GOLD + _never_called(error, options)
        if function.failure is not None:  # tests that expect an exception may have caught it
            return FAILURES.get(function.failure, "incorrect")
    return "incorrect" if error is not None else "correct"
