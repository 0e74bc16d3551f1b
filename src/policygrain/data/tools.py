"""Tools that a policy calls while it answers: pure functions of the text written so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CALL_END = "="  # a token that ends with this text ends a call
NO_CALL = "?;"  # output for a call that the tool cannot read
_CALL = re.compile(r"[a-z]?(-?\d{1,3})([+*-])(\d{1,3})=")


def calculator(written: str) -> str:
    """The output for the call at the end of ``written``: `a7*3=` → `21;`; `NO_CALL` for any other text.

    A call is the text after the last semicolon: an optional letter, and a sum, difference or product of two numbers of
    at most three digits.
    """
    call = _CALL.fullmatch(written.rpartition(";")[2])
    if call is None:
        return NO_CALL
    x, y = int(call[1]), int(call[3])
    result = {"+": x + y, "-": x - y, "*": x * y}[call[2]]
    return f"{result};"


def right_calls(written: str, solution: str) -> list[bool]:
    """For each call in ``written``, whether the worked solution has the same call at the same place."""
    made, worked = (
        [part.partition(CALL_END)[0] for part in text.split(";") if CALL_END in part] for text in (written, solution)
    )
    return [call == right for call, right in zip_longest(made, worked[: len(made)])]


TOOLS: dict[str, Callable[[str], str]] = {"calculation": calculator}  # by source of problems


class Tool:
    """A tool in the tokens of a tokenizer."""

    def __init__(self, function: Callable[[str], str], tokenizer: PreTrainedTokenizerBase) -> None:
        self.function, self.tokenizer = function, tokenizer
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        self.ends = frozenset(token for token, text in enumerate(texts) if text.endswith(CALL_END))

    def output(self, ids: Sequence[int]) -> list[int]:
        """The tokens that the tool writes after ``ids``, a response so far; none if its last token ends no call."""
        if not ids or ids[-1] not in self.ends:
            return []
        text = self.function(str(self.tokenizer.decode(list(ids))))
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> tuple[list[int], list[bool]]:
        """(tokens of the response ``text`` as policy and tool would have written them, mask of the policy's tokens)."""
        ids: list[int] = []
        mask: list[bool] = []
        while text:
            before, end, text = text.partition(CALL_END)
            written = self.tokenizer(before + end, add_special_tokens=False)["input_ids"]
            output = self.output([*ids, *written])
            ids += [*written, *output]
            mask += [True] * len(written) + [False] * len(output)
            text = text.removeprefix(str(self.tokenizer.decode(output)))
        return ids, mask
