"""The calculator, and a tool in the tokens of a tokenizer."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.data.characters import CHARACTERS, PAD
from policygrain.data.families import demonstrations, generate
from policygrain.data.tools import NO_CALL, Tool, calculator, right_calls
from policygrain.model import tiny

TOKENIZERS = {
    "characters": tiny.character_tokenizer(),
    "bpe": tiny.bpe_tokenizer([p.problem + p.steps for p in generate("calculation", "train", 200, seed=0)], 300),
}
WRITTEN = st.lists(st.sampled_from([*CHARACTERS[2:], "b12*3=", "c7-9=", "=", ";"]), max_size=12).map("".join)


@given(WRITTEN.map(lambda text: f"{text};"), st.sampled_from(["", "c"]), st.integers(-999, 999), st.integers(0, 999))
def test_a_call_is_computed_whatever_was_written_before_it(before: str, label: str, x: int, y: int) -> None:
    assert calculator(f"{before}{label}{x}+{y}=") == f"{x + y};"
    assert calculator(f"{before}{label}{x}-{y}=") == f"{x - y};"
    assert calculator(f"{before}{label}{x}*{y}=") == f"{x * y};"


@pytest.mark.parametrize(
    "call", ["=", "7=", "7+=", "+7=", "7+8+9=", "7/8=", "7*-8=", "1000+1=", "ab7+8=", "7 + 8=", "7+8"]
)
def test_what_is_no_call_has_the_same_output(call: str) -> None:
    assert calculator(f"b2*3=6;{call}") == NO_CALL


def test_a_call_is_right_if_the_worked_solution_has_it_at_the_same_place() -> None:
    steps = "b14*3=42;c42-6=36;d36+9=45;"
    assert right_calls(steps, steps) == [True] * 3
    assert right_calls(steps + "e45+1=46;\\boxed{46}", steps) == [True, True, True, False]
    assert right_calls("b14*3=42;d36+9=45;", steps) == [True, False]
    assert right_calls("b14*3=42;c42-6=", steps) == [True, True]  # truncated before the output
    assert right_calls("7;c42-6=36;", steps) == [False]
    assert right_calls("\\boxed{45}", steps) == []


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(WRITTEN)
def test_the_output_of_any_text_is_short_and_calls_nothing(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    tool, ids = Tool(calculator, tokenizer), tokenizer(text, add_special_tokens=False)["input_ids"]
    output = tool.output(ids)
    assert bool(output) == text.endswith("=")
    if output:
        assert re.fullmatch(r"(-?\d{1,6}|\?);", tokenizer.decode(output))
        assert not tool.output([*ids, *output])


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_demonstrations_are_what_the_tool_would_have_written(kind: str) -> None:
    """Between the policy's tokens there is the tool's output, also after a wrong operand; direct answers have none."""
    tokenizer = TOKENIZERS[kind]
    tool, calls = Tool(calculator, tokenizer), 0
    for _, _, response in islice(demonstrations(["calculation"], "0", error_rate=0.3, direct_share=0.2), 200):
        ids, mask = tool.encode(response)
        replayed: list[int] = []
        for token in (token for token, is_policy in zip(ids, mask, strict=True) if is_policy):
            replayed.append(token)
            replayed += tool.output(replayed)
        assert replayed == ids and tokenizer.decode(ids) == response
        calls += response.count("=")
        assert NO_CALL not in response and PAD not in tokenizer.decode(ids)
    assert calls > 500
