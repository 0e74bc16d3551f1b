"""What an engine is, what it is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Request:
    """One response wanted. The same prompt and seed give the same response, whatever else is in the batch."""

    prompt_ids: list[int]
    seed: int
    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    log_probs: bool = True  # False: not asked for, which saves an engine time


@dataclass(frozen=True)
class Response:
    """Token ids with the end of sequence, where it was reached, and the engine's own log-probability of each.

    Log-probabilities that nobody asked for may be left out.
    """

    ids: list[int]
    finished: bool  # ended by itself; False: cut at max_tokens
    log_probs: list[float]


class Engine(Protocol):
    """Continues prompts with the weights it was given last."""

    name: str

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response per request, in order."""
        ...

    def load_weights(self, model: PreTrainedModel) -> None:
        """From now on, sample from these weights."""
        ...

    def sleep(self) -> None:
        """Not needed until weights are loaded again: memory that it shares with a trainer is the trainer's."""
        ...
