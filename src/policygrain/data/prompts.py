"""The prompt renderer, the same for training, validation and evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from ..digests import of_json
from ..errors import UserError
from ..grading.extraction import opened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..study.schema import Prompt
    from .problem import Problem


class PromptRenderer:
    """Renders problems as prompts of at most ``longest`` tokens, by a template or the tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, longest: int | None = None) -> None:
        self.tokenizer, self.prompt, self.longest = tokenizer, prompt, longest
        # The beginning-of-sequence token, for texts to which the tokenizer adds it (Llama 3, Gemma).
        added = [] if prompt.chat else list(tokenizer("a")["input_ids"][:1])
        self._first = added if added == [tokenizer.bos_token_id] else []
        if prompt.chat and not tokenizer.chat_template:
            raise UserError("prompt.chat: the model's tokenizer has no chat template; set it to false.")

    def text(self, problem: str, program: bool = False) -> str:
        """The prompt for ``problem`` as text; ``program``: its answer is a program."""
        text = (self.prompt.program if program else self.prompt.template).replace("{problem}", problem)
        if not self.prompt.chat:
            return text
        system = self.prompt.system
        # Always with a system message, even an empty one: without it some templates insert a default system prompt.
        with suppress(TemplateError):
            rendered = self._chat([{"role": "system", "content": system}, {"role": "user", "content": text}])
            if system.strip() in rendered:
                return rendered
        # The template has no system role: it refuses the message or leaves it out.
        try:
            return self._chat([{"role": "user", "content": f"{system}\n\n{text}" if system else text}])
        except TemplateError as error:
            raise UserError(f"prompt.chat: the chat template cannot be used: {error}. Set it to false.") from error

    def _chat(self, messages: list[dict[str, str]]) -> str:
        today = date(2024, 7, 26).strftime  # which some templates write; this date, where they are given none
        arguments = {"strftime_now": today, **self.prompt.chat_template_kwargs}
        arguments |= {"tokenize": False, "add_generation_prompt": True}
        return str(self.tokenizer.apply_chat_template(messages, **arguments))

    def ids(self, problem: str, program: bool = False, response: int = 0) -> list[int]:
        """The prompt for ``problem`` as token ids. UserError if with ``response`` there are more than ``longest``."""
        ids = self._first + list(self.tokenizer(self.text(problem, program), add_special_tokens=False)["input_ids"])
        if self.longest is not None and len(ids) > self.longest - response:
            raise UserError(
                f"a prompt of {len(ids)} tokens leaves no room for the response in the model's context (at most "
                f"{self.longest - response}): {problem[:80]!r}. Lower max_tokens, leave the problem out, or take a "
                "longer context."
            )
        return ids

    @cached_property
    def opening(self) -> str:
        """What opens a thought at the end of prompts, as in many chat templates; to a grader it is in the response."""
        return opened(str(self.tokenizer.decode(self.ids("0"), skip_special_tokens=True)))

    def responses(self, problems: Iterable[Problem], ids: list[list[int]]) -> list[str]:
        """The texts of responses as they are graded; programs are extracted without regard to thoughts."""
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [t if p.options.tests else self.opening + t for p, t in zip(problems, texts, strict=True)]

    @property
    def digest(self) -> str:
        """A digest of what rendered prompts depend on, besides the tokenizer's vocabulary."""
        template = self.tokenizer.chat_template if self.prompt.chat else None
        return of_json([self.prompt.model_dump(mode="json"), template, self._first])
