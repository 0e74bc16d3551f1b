"""Benchmark problems among the training prompts: exact and near duplicates."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from policygrain.data.contamination import overlaps, tokens
from policygrain.data.problem import Problem


def problems(*texts: str) -> list[Problem]:
    return [Problem(str(i), text, "0") for i, text in enumerate(texts)]


def pair(benchmark: int, training: int, kind: str, similarity: float):
    found = {"benchmark": str(benchmark), "training": str(training), "kind": kind}
    return found | {"similarity": round(similarity, 4)}


def test_words_and_numbers_are_compared_without_layout():
    assert tokens(r"Let $x^2 \ge \dfrac{12}{\sqrt{y}}$.") == ["let", "x", "2", "ge", "12", "sqrt", "y"]
    assert tokens("设\\left(a\\right)为") == ["设", "a", "为"]
    a, b = r"Find $\frac{1}{2}$ of THE sum, please!", r"find \left(1/2\right) of the sum please"
    assert overlaps(problems(a), {"b": problems(b)}) == {"b": [pair(0, 0, "exact", 1.0)]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefghijklmnopq"), max_size=14), min_size=2, max_size=24))
@example([list("abcdefghij")] * 3 + [list("abcdefgh"), list("abcdefg"), list("jihgfedcba")])
def test_every_near_pair_is_found(texts):
    """As by comparing all pairs: from 8 words and a similarity of 0.8 on. Texts without words have no duplicates."""
    half = len(texts) // 2
    expected = []
    for i, a in enumerate(texts[half:]):
        for j, b in enumerate(texts[:half]):
            shared, union = len({*a} & {*b}), len({*a} | {*b})
            if (a and a == b) or (min(len({*a}), len({*b})) >= 8 and 10 * shared >= 8 * union):
                expected.append(pair(i, j, "exact" if a == b else "near", shared / union))
    train, benchmark = (problems(*map(" ".join, part)) for part in (texts[:half], texts[half:]))
    assert overlaps(train, {"b": benchmark}) == {"b": expected}
