"""Extraction of answers from responses."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policygrain.errors import UserError
from policygrain.grading.extraction import boxed, extract, joined_boxes


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "a", "\\boxed"]), max_size=12).map("".join))
def test_the_last_complete_box(text: str) -> None:
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


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("\\boxed{1}, \\boxed{2}", "1, 2"),
        ("$\\boxed{1}$ and $\\boxed{2}$", "1, 2"),
        ("\\boxed{(2,2)} \\text{ and } \\boxed{(6,2)}", "(2,2), (6,2)"),
        ("\\boxed{1} \\quad \\boxed{2}", "1, 2"),
        ("\\boxed{1} is wrong, so \\boxed{2}", "2"),
        ("\\boxed {5}", "5"),
        ("\\boxed{1} and \\boxed 2", "1, 2"),
        ("no box", None),
    ],
)
def test_adjacent_boxes_are_joined(text: str, joined: str | None) -> None:
    assert joined_boxes(text) == joined
    assert extract(text, list_answer=True) == joined


# Expected values follow `is_correct_minerva` of verl's math_dapo.
@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so\nAnswer: 34", "34"),
        ("Answer: 1\nno\nanswer :  $\\frac{1}{2}$.", "\\frac{1}{2}"),
        ("Answer: \\boxed{7}", "7"),
        ("Answer: the value is $5$", "5"),
        ("Answer:\n5", "5"),
        ("34", None),
        ("\\boxed{34}", None),
        ("Answer: 34" + " " * 300, None),
    ],
)
def test_answer_line(response: str, answer: str | None) -> None:
    assert extract(response, "answer_line") == answer


# Expected values follow `extract_answer` of Qwen2.5-Math.
@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{1} The final answer is $2$. I hope it is correct.", "2"),
        ("\\boxed{1} then \\boxed{\\frac{1}{2}}. The answer is 3", "\\frac{1}{2}"),
        ("$\\boxed 2$ and 3", "2"),
        ("\\boxed{12", "12"),
        ("the answer is 4. No, the answer is: 5.", "5"),
        ("The final answer is 6.", "6"),
        ("答案是 7\n\n8", "7"),
        ("first 1,234 and then -5.5 dogs", "-5.5"),
        ("so 1,234", "1234"),
        ("no number", None),
    ],
)
def test_qwen_math(response: str, answer: str | None) -> None:
    assert extract(response, "qwen_math") == answer


@pytest.mark.parametrize("protocol", ["boxed", "answer_line", "qwen_math"])
@pytest.mark.parametrize(
    "piece", ["\\boxed{", "\\boxed{1}", "{", "}", "boxed", "Answer:", "$", "1", "-", " ", "the answer is", "\n"]
)
def test_extraction_is_linear(protocol: str, piece: str) -> None:
    begin = time.monotonic()
    extract(piece * 100_000, protocol)
    extract(piece * 100_000, protocol, list_answer=True)
    assert time.monotonic() - begin < 10


def test_an_unknown_protocol_is_an_error() -> None:
    with pytest.raises(UserError, match="Did you mean 'boxed'"):
        extract("5", "box")
