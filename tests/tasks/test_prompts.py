"""The prompt renderer."""

from __future__ import annotations

from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.study.schema import Prompt
from policygrain.tasks.prompts import PromptRenderer
from policygrain.tasks.sources import load

from ..support.problem_sets import SEVEN


def test_rendered_prompts_of_the_seven_benchmarks_decode_to_their_text(benchmarks_folder: Path) -> None:
    from policygrain.model.tiny import bpe_tokenizer

    problems = {name: load(name, benchmarks_folder) for name in SEVEN}
    tokenizer = bpe_tokenizer([p.problem for p in problems["math500"][:100]], 512)
    renderer = PromptRenderer(tokenizer, Prompt(template="{problem}\nPut the final answer in \\boxed{}.\n"))
    for name, found in problems.items():
        for problem in found[:40]:
            ids = renderer.ids(problem.problem)
            assert tokenizer.decode(ids) == f"{problem.problem}\nPut the final answer in \\boxed{{}}.\n", name


def test_plain_templates_and_chat_templates_with_a_system_prompt() -> None:
    from policygrain.model.tiny import character_tokenizer

    tokenizer = character_tokenizer()
    plain = PromptRenderer(tokenizer, Prompt(template="{problem}\n"))
    assert tokenizer.decode(plain.ids("total a1 b2")) == "total a1 b2\n"
    with pytest.raises(UserError, match=r"prompt\.chat"):
        PromptRenderer(tokenizer, Prompt(chat=True))
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    chat = PromptRenderer(tokenizer, Prompt(template="{problem}", chat=True, system="be brief"))
    assert chat.text("1+1") == "<system>be brief<user>1+1<assistant>"
    assert chat.digest != plain.digest
