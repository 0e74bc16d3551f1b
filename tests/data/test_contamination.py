"""Benchmark problems among the training prompts: exact and near duplicates."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policygrain.data import contamination
from policygrain.data.problem import Problem
from policygrain.data.registry import SETS
from policygrain.data.sources import load

from ..support.problem_sets import RECORDED


def problem(identity: object, text: str) -> Problem:
    return Problem(str(identity), text, "0", "made up")


def test_words_and_numbers_are_compared_without_layout():
    assert contamination.tokens(r"Let $x^2 \ge \dfrac{12}{\sqrt{y}}$.") == ["let", "x", "2", "ge", "12", "sqrt", "y"]
    assert contamination.tokens("设\\left(a\\right)为") == ["设", "a", "为"]
    a = problem("a", r"Find $\frac{1}{2}$ of THE sum, please!")
    b = problem("b", r"find \left(1/2\right) of the sum please")
    assert contamination.TrainingIndex([a]).overlaps([b]) == [contamination.Overlap("b", "a", "exact", 1.0)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefghijklmnopq"), max_size=14), min_size=2, max_size=24))
@example([list("abcdefghij")] * 3 + [list("abcdefgh"), list("abcdefg"), list("jihgfedcba")])
def test_every_near_pair_is_found(texts):
    """As by comparing all pairs: from 8 words and a similarity of 0.8 on. Texts without words have no duplicates."""
    half = len(texts) // 2
    train = [problem(i, " ".join(text)) for i, text in enumerate(texts[:half])]
    benchmark = [problem(i, " ".join(text)) for i, text in enumerate(texts[half:])]
    expected = set()
    for i, a in enumerate(texts[half:]):
        for j, b in enumerate(texts[:half]):
            shared, union = len({*a} & {*b}), len({*a} | {*b})
            if (a and a == b) or (min(len({*a}), len({*b})) >= 8 and 10 * shared >= 8 * union):
                kind = "exact" if a == b else "near"
                expected.add(contamination.Overlap(str(i), str(j), kind, round(shared / union, 4)))
    found = contamination.TrainingIndex(train).overlaps(benchmark)
    assert set(found) == expected and len(found) == len(expected)


TITLES = {"dapo_math_17k": "DAPO-Math-17k", "math_train": "MATH's training split", "gsm8k_train": "GSM8K's"}


@pytest.mark.release
@pytest.mark.parametrize("training", TITLES)
def test_the_overlaps_that_the_registered_sets_mention_are_those_found(training, benchmarks_folder):
    index = contamination.TrainingIndex(load(training, benchmarks_folder))
    for of in (SETS[name] for name in RECORDED if SETS[name].n):
        found = len({pair.benchmark for pair in index.overlaps(load(of.name, benchmarks_folder))})
        said = re.findall(rf"(\d+) of them are in {TITLES[training]}", " ".join((of.problems.__doc__ or "").split()))
        assert said == ([str(found)] if found else []), of.name
