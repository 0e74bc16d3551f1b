"""Problems of two kinds in one study: programs are run, all other answers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from .options import DEFAULT, Options
from .outcome import Grader, Outcome


class ByProblem:
    """Responses to problems with tests go to ``code``, all others to ``answers``."""

    def __init__(self, answers: Grader, code: Grader) -> None:
        self.answers, self.code = answers, code
        self.name = f"{answers.name}; {code.name}"

    def grade(
        self,
        golds: Sequence[str],
        responses: Sequence[str],
        options: Options | Sequence[Options] = DEFAULT,
        ids: Sequence[str] | None = None,
    ) -> list[Outcome]:
        """One outcome per response, in their order."""
        each = [options] * len(golds) if isinstance(options, Options) else list(options)
        found: dict[int, Outcome] = {}
        for grader, with_tests in ((self.answers, False), (self.code, True)):
            own = [i for i, o in enumerate(each) if bool(o.tests) is with_tests]
            if own:
                names = None if ids is None else [ids[i] for i in own]
                golds_, texts = [golds[i] for i in own], [responses[i] for i in own]
                outcomes = grader.grade(golds_, texts, [each[i] for i in own], names)
                found |= dict(zip(own, outcomes, strict=True))
        return [found[i] for i in range(len(each))]

    def close(self) -> None:
        """End worker processes."""
        self.answers.close()
        self.code.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
