"""A `Collector` whose engine, grader and prompt renderer do as they are told, and keep what they were asked."""

from collections.abc import Sequence
from typing import Any

from policygrain.data.problem import Problem
from policygrain.grading import Item
from policygrain.model.engine import Request, Rollout
from policygrain.objective import Sampler
from policygrain.study.schema import Training
from policygrain.train.rollouts import Collector, PromptStream


class InOrder(PromptStream):
    """Problems in their order, epoch after epoch."""

    def _order(self, epoch: int) -> list[int]:
        return list(range(len(self.problems)))


class Scripted:
    """Which of problem n's responses are right is in ``script[n]``; ``lengths`` are those of a group."""

    def __init__(self, script: Sequence[tuple[bool, ...]], lengths: Sequence[int] = (3, 3)) -> None:
        self.script, self.lengths = script, lengths
        self.asked: list[list[tuple[int, int]]] = []  # (problem, seed) of each request, by call
        self.problems = [Problem(str(n), str(n), "", "") for n in range(len(script))]

    def collector(
        self, settings: Training, sampler: Sampler | None = None, seed: int = 0, stream: PromptStream | None = None
    ) -> Collector:
        """A collector that has this as its engine, grader and renderer."""
        parts: Any = self
        return Collector(stream or InOrder(self.problems, 0), parts, parts, parts, sampler or Sampler(), settings, seed)

    def ids(self, problem: str, program: bool = False) -> list[int]:
        return [int(problem)]

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        self.asked.append([(*request.prompt_ids, request.seed) for request in requests])
        lengths = [self.lengths[i % len(self.lengths)] for i in range(len(requests))]
        return [Rollout(r.prompt_ids, [7] * n, True, [-1.0] * n) for r, n in zip(requests, lengths, strict=True)]

    def load_weights(self, model: Any) -> None: ...

    def sleep(self) -> None: ...

    def responses(self, problems: Sequence[Problem], ids: list[list[int]]) -> list[str]:
        return [""] * len(ids)

    def grade(self, items: Sequence[Item]) -> list[str]:
        right = [self.script[int(item.name)][i % len(self.lengths)] for i, item in enumerate(items)]
        return ["correct" if r else "incorrect" for r in right]
