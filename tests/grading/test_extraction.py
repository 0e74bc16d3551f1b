"""Extraction of answers from responses."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.errors import UserError
from policygrain.grading.extraction import boxed, extract

from . import read

# Fields: protocol, response, answer and perhaps list_answer. Those of answer_line follow `is_correct_minerva` of verl's
# math_dapo, those of qwen_math `extract_answer` of Qwen2.5-Math.
CASES = read("responses.jsonl")


@pytest.mark.parametrize("protocol", sorted({case["protocol"] for case in CASES}))
def test_answers_of_responses(protocol):
    cases = [case for case in CASES if case["protocol"] == protocol]
    found = [extract(case["response"], protocol, case.get("list_answer", False)) for case in cases]
    assert [(c, f) for c, f in zip(cases, found, strict=True) if f != c["answer"]] == []


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "a", "\\boxed"]), max_size=12).map("".join))
def test_the_last_complete_box(text):
    """As the definition says it, in quadratic time; a response that ends in a box has no answer."""
    found = None
    for start in (i for i in range(len(text)) if text.startswith("\\boxed{", i)):
        depth, begin, found = 1, start + len("\\boxed{"), None
        for end in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                found = text[begin:end]
                break
    assert boxed(text) == found


PIECES = ["\\boxed{", "\\boxed{1}", "{", "}", "boxed", "Answer:", "$", "1", "-", " ", "the answer is", "\n", "####"]


@pytest.mark.parametrize("protocol", sorted({case["protocol"] for case in CASES}))
def test_extraction_is_linear(protocol):
    for piece in PIECES:
        begin = time.monotonic()
        extract(piece * 50_000, protocol)
        extract(piece * 50_000, protocol, list_answer=True)
        assert time.monotonic() - begin < 10, piece


def test_an_unknown_protocol_is_an_error():
    with pytest.raises(UserError, match="Did you mean 'boxed'"):
        extract("5", "box")
