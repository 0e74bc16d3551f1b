"""The prompt renderer."""

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from policygrain.data.prompts import PromptRenderer
from policygrain.data.sources import load
from policygrain.errors import UserError
from policygrain.model.tiny import bpe_tokenizer, character_tokenizer
from policygrain.study.schema import Prompt

from ..support.problem_sets import SEVEN


def test_rendered_prompts_of_the_seven_benchmarks_decode_to_their_text(benchmarks_folder):
    problems = {name: load(name, benchmarks_folder) for name in SEVEN}
    tokenizer = bpe_tokenizer([p.problem for p in problems["math500"][:100]], 512)
    renderer = PromptRenderer(tokenizer, Prompt(template="{problem}\nPut the final answer in \\boxed{}.\n"))
    for name, found in problems.items():
        for problem in found[:40]:
            ids = renderer.ids(problem.problem)
            assert tokenizer.decode(ids) == f"{problem.problem}\nPut the final answer in \\boxed{{}}.\n", name


SYSTEM = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + SYSTEM
IGNORES = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
THINKS = SYSTEM + "{% if not enable_thinking %}<think></think>{% endif %}"
# Template, system prompt, arguments, and the prompt for `1+1`.
REPORTED: list[tuple[str, str, dict[str, Any], str]] = [
    (SYSTEM, "be brief", {}, "<system>be brief<user>1+1<assistant>"),
    (REFUSES, "be brief", {}, "<user>be brief\n\n1+1<assistant>"),
    (REFUSES, "", {}, "<user>1+1<assistant>"),
    (IGNORES, "be brief", {}, "<user>be brief\n\n1+1<assistant>"),
    (THINKS, "", {"enable_thinking": True}, "<system><user>1+1<assistant>"),
    (THINKS, "", {"enable_thinking": False}, "<system><user>1+1<assistant><think></think>"),
]


@pytest.mark.parametrize(("template", "system", "arguments", "prompt"), REPORTED)
def test_chat_templates_with_and_without_a_system_role(template, system, arguments, prompt):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    settings = Prompt(template="{problem}", chat=True, system=system, chat_template_kwargs=arguments)
    renderer = PromptRenderer(tokenizer, settings)
    assert renderer.text("1+1") == prompt
    others = [Prompt(template="{problem}", chat=chat) for chat in ((False, True) if arguments else (False,))]
    assert renderer.digest not in [PromptRenderer(tokenizer, other).digest for other in others]


@pytest.mark.parametrize(
    ("template", "says"), [(None, r"prompt\.chat"), ("{{ raise_exception('never') }}", "cannot be used: never")]
)
def test_a_chat_template_that_is_missing_or_refuses_every_message_is_said(template, says):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=says):
        PromptRenderer(tokenizer, Prompt(chat=True)).text("1+1")


def test_prompts_begin_as_the_tokenizer_begins_texts():
    """With the beginning-of-sequence token where it adds one, and without the end that some add."""

    plain = PromptRenderer(character_tokenizer(), Prompt(template="{problem}"))
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    marks = [("<bos>", tokenizer.bos_token_id), (tokenizer.eos_token, tokenizer.eos_token_id)]
    whole = f"<bos> $A {tokenizer.eos_token}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=whole, special_tokens=marks)
    renderer = PromptRenderer(tokenizer, Prompt(template="{problem}"))
    assert renderer.ids("1+1") == [tokenizer.bos_token_id, *plain.ids("1+1")]
    assert renderer.digest != plain.digest
    tokenizer.chat_template = SYSTEM
    assert tokenizer.bos_token_id not in PromptRenderer(tokenizer, Prompt(template="{problem}", chat=True)).ids("1+1")
