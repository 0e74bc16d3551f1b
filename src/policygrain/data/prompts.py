"""The prompt renderer, the same for training, validation and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import TemplateError

from ..digests import of_json
from ..errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..study.schema import Prompt


class PromptRenderer:
    """Renders problems as prompts, with a plain template or the tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, longest: int | None = None) -> None:
        """``longest`` is the maximum length of a prompt in tokens: the model's context less the response.

        UserError if `prompt.chat` is set and the tokenizer has no chat template.
        """
        self.tokenizer, self.prompt, self.longest = tokenizer, prompt, longest
        # The beginning-of-sequence token, for texts to which the tokenizer adds it (Llama 3, Gemma).
        added = [] if prompt.chat else list(tokenizer("a")["input_ids"][:1])
        self._first = added if added == [tokenizer.bos_token_id] else []
        if prompt.chat and not tokenizer.chat_template:
            raise UserError("prompt.chat: the model's tokenizer has no chat template; set it to false.")

    def text(self, problem: str, program: bool = False) -> str:
        """The prompt for ``problem`` as text; ``program``: its answer is a program."""
        template = self.prompt.program if program else self.prompt.template
        text = template.replace("{problem}", problem)
        if not self.prompt.chat:
            return text
        system = self.prompt.system
        # Always with a system message, even an empty one: without it some templates insert a default system prompt.
        rendered = self._chat([{"role": "system", "content": system}, {"role": "user", "content": text}])
        if isinstance(rendered, str) and system.strip() in rendered:
            return rendered
        # The template has no system role: it refuses the message or leaves it out.
        merged = self._chat([{"role": "user", "content": f"{system}\n\n{text}" if system else text}])
        if isinstance(merged, str):
            return merged
        raise UserError(f"prompt.chat: the model's chat template cannot be used: {merged}. Set prompt.chat to false.")

    def _chat(self, messages: list[dict[str, str]]) -> str | TemplateError:
        """The messages in the chat template, or the error with which it refuses them."""
        arguments = self.prompt.chat_template_kwargs | {"tokenize": False, "add_generation_prompt": True}
        try:
            return str(self.tokenizer.apply_chat_template(messages, **arguments))
        except TemplateError as error:
            return error

    def ids(self, problem: str, program: bool = False) -> list[int]:
        """The prompt for ``problem`` as token ids; a chat template writes the special tokens itself.

        UserError if the prompt is longer than ``longest``.
        """
        ids = self._first + list(self.tokenizer(self.text(problem, program), add_special_tokens=False)["input_ids"])
        if self.longest is not None and len(ids) > self.longest:
            raise UserError(
                f"a prompt of {len(ids)} tokens leaves no room for the response in the model's context (at most "
                f"{self.longest}): {problem[:80]!r}. Lower max_tokens, leave the problem out, or take a longer context."
            )
        return ids

    @property
    def digest(self) -> str:
        """A digest of everything that rendered prompts depend on, besides the tokenizer's vocabulary."""
        template = self.tokenizer.chat_template if self.prompt.chat else None
        return of_json([self.prompt.model_dump(), template, self._first])
