"""What engines are asked for and return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .small import LanguageModel


@dataclass(frozen=True)
class Request:
    """A request for one response. The response depends on prompt and seed, not on other requests in the batch."""

    prompt_ids: list[int]
    seed: int
    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    log_probs: bool = True  # False: not needed, which is faster with some engines


@dataclass
class Rollout:
    """A sampled response, in token ids; training grades it."""

    prompt: list[int]
    ids: list[int]  # with the end-of-sequence token if it ended by itself
    finished: bool  # ended by an end-of-sequence token; False: truncated at max_tokens
    log_probs: list[float]  # the engine's own; may be missing if the request has ``log_probs=False``
    reward: float = math.nan
    correct: bool = False


def ends_of(model: LanguageModel, eos_id: int) -> list[int]:
    """The tokens that end a response; chat models often have an end of the turn and one of the text."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    return sorted({eos_id, *(configured if isinstance(configured, list) else [configured])} - {None})


class Engine(Protocol):
    """Samples responses from the weights that were loaded last."""

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        """One response per request, in order."""

    def load_weights(self, model: LanguageModel) -> None:
        """Use the current weights of ``model`` from now on."""

    def sleep(self) -> None:
        """Release the GPU memory shared with the trainer until weights are loaded again."""
