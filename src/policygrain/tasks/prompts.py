"""The one prompt renderer: training, validation and evaluation all ask in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..digests import of_text
from ..errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..study.schema import Prompt


_PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for a problem


class PromptRenderer:
    """Problem text → prompt token ids, by a plain template or by the tokenizer's own chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, longest: int | None = None) -> None:
        """``longest``: tokens that a prompt may have, what the model's context leaves beside the response."""
        self.tokenizer, self.prompt, self.longest = tokenizer, prompt, longest
        if prompt.chat and not tokenizer.chat_template:
            raise UserError("prompt.chat: the model's tokenizer has no chat template; set it to false.")

    def text(self, problem: str) -> str:
        """What the model is shown."""
        text = self.prompt.template.replace("{problem}", problem)
        if not self.prompt.chat:
            return text
        # Saying the system prompt ourselves, even an empty one, keeps a template from injecting a default of its own.
        messages = [{"role": "system", "content": self.prompt.system}, {"role": "user", "content": text}]
        rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return str(rendered)

    def ids(self, problem: str) -> list[int]:
        """Its token ids. A chat template writes its special tokens itself, so none are added."""
        ids = list(self.tokenizer(self.text(problem), add_special_tokens=False)["input_ids"])
        if self.longest is not None and len(ids) > self.longest:
            raise UserError(
                f"a prompt of {len(ids)} tokens leaves no room for the response in the model's context (at most "
                f"{self.longest}): {problem[:80]!r}. Lower max_tokens, leave the problem out, or take a longer context."
            )
        return ids

    @property
    def parts(self) -> tuple[str, str] | None:
        """What stands before and after a problem; None where a chat template puts it elsewhere, or more than once."""
        parts = self.text(_PLACE).split(_PLACE)
        return (parts[0], parts[1]) if len(parts) == 2 else None

    @property
    def digest(self) -> str:
        """Changes whenever a rendered prompt could: part of every evaluation record."""
        content = f"{self.prompt.template}\0{self.prompt.chat}\0{self.prompt.system}\0"
        content += str(self.tokenizer.chat_template) if self.prompt.chat else ""
        return of_text(content)
