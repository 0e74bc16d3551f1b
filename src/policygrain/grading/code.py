"""The code grader: a response's program is run in a sandbox against the problem's tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import dedent
from typing import cast

from ..errors import UserError
from .grader import UNREADABLE_GOLD, Grader, Item, Options, Outcome
from .sandbox import isolation
from .workers import Pool, Task, default_workers

# Indentation, language (the second: after other text on the line) and content of a fenced block; of any language, so
# that no end is taken for a beginning. A block ends where a line that is not indented further begins with a fence.
_FENCED = re.compile(
    r"^([ \t]*+)(?:```[ \t]*+([\w+-]*+)[^`\n]*+|(?:(?!```)[^\n])++```[ \t]*+((?i:python3?|py)?)[ \t]*+)\n"
    r"(.*?)(?:^(?!\1(?: {4}|\t))[ \t]*+```|\Z)",
    re.DOTALL | re.MULTILINE,
)
_LANGUAGES = ("", "python", "py", "python3")
# The end of a function's body: a line that begins something else.
_END = re.compile(r"\n(?=class |def |async def |if __name__|print\(|#|@|```|assert )")
# Bytes for the worker that runs the tests: tests contain all their inputs and expected values.
WORKER_MEMORY = 4 * 2**30


class ByProblem(Grader):
    """Responses to problems with tests go to ``code``, all others to ``answers``."""

    def __init__(self, answers: Grader, code: Grader) -> None:
        self.answers, self.code = answers, code
        self.name = f"{answers.name}; {code.name}"

    def grade_items(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response, in their order."""
        outcomes: dict[int, Outcome] = {}
        for grader, with_tests in ((self.answers, False), (self.code, True)):
            places = [i for i, item in enumerate(items) if bool(item.options.tests) is with_tests]
            if places:
                outcomes |= dict(zip(places, grader.grade_items([items[i] for i in places]), strict=True))
        return [outcomes[i] for i in range(len(items))]

    def close(self) -> None:
        """End worker processes."""
        self.answers.close()
        self.code.close()


class CodeGrader(Grader):
    """Runs programs against tests.

    Outcomes: `correct` and `incorrect`; `unparsable`: the response has no program, or one that is not valid Python;
    `timeout`; `error`: the program needs too much memory, or its tests end their process.

    Each program has ``seconds`` of processor time (unless its problem sets another limit) and ``mib`` MiB of memory
    for all its tests. The tests run in another process, which calls the program as a function in the sandbox and
    receives only values, so the program cannot reach its tests. UserError if this machine cannot isolate programs.
    """

    def __init__(self, workers: int | None = None, seconds: float = 20.0, mib: int = 1024) -> None:
        self.name = f"code-4 ({isolation()}, {seconds:g} s, {mib} MiB)"
        self.seconds, self.mib = seconds, mib
        # The sandbox limits the program's time. The tests, which compare its return values, have the same time on top.
        limits = (workers or default_workers(), 2 * seconds, WORKER_MEMORY)
        # Changes that tests make to their process do not affect the tests of another program.
        self.pool = Pool(*limits, kind="programs", fresh=True)

    def grade_items(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response, by the tests in the item's options; gold answers are not used.

        UserError if a problem has no tests, or if its tests never call its function.
        """
        tasks: dict[int, Task] = {}
        for i, item in enumerate(items):
            if not item.options.tests:
                raise UserError(f"{item.name}: the problem has no tests to run a program against.")
            if (program := program_of(item.text, item.options)) is not None:
                tasks[i] = (f"{item.options.seconds or self.seconds} {self.mib}", program, item.options)
        outcomes: list[Outcome] = ["unparsable"] * len(items)
        for i, outcome in zip(tasks, self.pool.run([*tasks.values()]), strict=True):
            if outcome.startswith(UNREADABLE_GOLD):
                raise UserError(f"{items[i].name}: {outcome.removeprefix(UNREADABLE_GOLD)}")
            outcomes[i] = cast("Outcome", outcome)
        return outcomes

    def close(self) -> None:
        """End the workers; they are started again when needed."""
        self.pool.close()


def program_of(response: str, options: Options) -> str | None:
    """The program in a response, preceded by the problem's ``setup``; None if there is none.

    The program is the last fenced block that defines the function, else the whole response if it defines the function.
    Otherwise the last block, or the response, is taken as a completion of the problem's signature, up to the first line
    that is no longer part of the function. Blocks in other languages are left out.
    """
    response = response.replace("\r\n", "\n")
    found = _FENCED.findall(response)
    blocks = [block for _, one, other, block in found if (one or other).lower() in _LANGUAGES and block.strip()]
    defines = re.compile(rf"^\s*(?:async )?(?:def|class)\s+{re.escape(options.entry_point)}\b", re.MULTILINE)
    for candidate in [*reversed(blocks), response]:
        if defines.search(candidate):
            return f"{options.setup}\n{dedent(candidate)}\n"
    body = blocks[-1] if blocks else response
    if not options.signature or not body.strip():
        return None
    body = _END.split(body, maxsplit=1)[0]
    return f"{options.setup}\n{options.signature}{body}\n"
