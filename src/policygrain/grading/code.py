"""The code grader: a response's program is run in a sandbox against the problem's tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self, cast

from ..errors import UserError
from ..sandbox import isolation
from .options import DEFAULT, Options
from .outcome import Outcome
from .pool import Pool, default_workers

_FENCED = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL | re.IGNORECASE)
# Where a completion of a function has ended and something else begins.
_END = re.compile(r"\n(?=class |def |async def |if __name__|print\(|#|@|```|assert )")
# Of the worker that runs the tests, which hold all their inputs and expected values.
WORKER_MEMORY = 4 * 2**30


class CodeGrader:
    """Runs programs against tests.

    Outcomes: `correct` and `incorrect`; `unparsable`: no program, or no Python; `timeout`; `error`: too much memory.
    ``seconds`` of processor time (unless its problem says another time) and ``mib`` of memory for each program, over
    all its tests. Tests run in a process of their own, which the program cannot reach: it is called there as a
    function, and only values come back. UserError if this machine cannot keep programs apart.
    """

    def __init__(self, workers: int | None = None, seconds: float = 20.0, mib: int = 1024) -> None:
        self.name = f"code-1 ({isolation()}, {seconds:g} s, {mib} MiB)"
        self.seconds, self.mib = seconds, mib
        # A program's time is limited where it runs; tests that compare what it returns get as long again.
        self.pool = Pool(workers or default_workers(), 2 * seconds, WORKER_MEMORY, kind="programs")

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = DEFAULT,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per response; ``golds`` are not read, ``options`` have the tests.

        UserError, naming the item of ``ids``, if a problem has no tests.
        """
        each = [options] * len(responses) if isinstance(options, Options) else options
        for i, own in enumerate(each):
            if not own.tests:
                raise UserError(f"{ids[i] if ids else f'item {i}'}: the problem has no tests to run a program against.")
        programs = [program_of(text, own) for text, own in zip(responses, each, strict=True)]
        tasks = [
            (f"{o.seconds or self.seconds} {self.mib}", p, o)
            for p, o in zip(programs, each, strict=True)
            if p is not None
        ]
        found = iter(self.pool.run(tasks))
        return [cast("Outcome", "unparsable" if p is None else next(found)) for p in programs]

    def close(self) -> None:
        """End the workers; they are started again when needed."""
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def program_of(response: str, options: Options) -> str | None:
    """The program in a response, after the problem's own ``setup``; None if there is none.

    The last fenced block of Python, or the whole response if it defines the function. If neither does, the response is
    a completion of the problem's signature, up to where something else begins.
    """
    blocks = [block for block in _FENCED.findall(response) if block.strip()]
    defines = re.compile(rf"^\s*(?:async )?(?:def|class)\s+{re.escape(options.entry_point)}\b", re.MULTILINE)
    for candidate in [*reversed(blocks), response]:
        if defines.search(candidate):
            return f"{options.setup}\n{candidate}\n"
    body = blocks[-1] if blocks else response
    if not options.signature or not body.strip():
        return None
    body = _END.split(body, maxsplit=1)[0]
    return f"{options.setup}\n{options.signature}{body}\n"
