"""Synthetic families: right answers, disjoint splits, demonstrations."""

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.data.families import ENGLISH as families_in_english
from policygrain.data.families import FAMILIES, Demonstrator, demonstrations, generate, split_of
from policygrain.grading import Item, NumericGrader

ENGLISH = {family.__name__ for family in families_in_english}
LOSSES = ("eats", "loses", "gives", "sells")


def solve(question: str) -> int:
    """The answer computed from the question alone, independently of the worked steps."""
    if question.startswith("What is"):
        x, sign, y = question.removesuffix("?").split()[2:]
        return int(x) + (1 if sign == "plus" else -1) * int(y)
    if " in word " in question:
        wanted, among = question.removeprefix("How many ").removesuffix("?").split(" are there in word ")
        return among.split("-").count(wanted)
    if "How many" in question:
        told = [sentence.split() for sentence in question.split(". ")[:-1]]
        return sum((-1 if words[1] in LOSSES else 1) * int(next(filter(str.isdigit, words))) for words in told)
    family, *words = re.sub(r"\bz([a-z])", r"\1", question).split()  # labels of two letters
    operands = [word[1:] for word in words if word[0].isalpha() and word != "in"]
    match family:
        case "total":
            return sum(map(int, operands))
        case "add":
            return sum((int(x) + int(y)) * 10**i for i, (x, y) in enumerate(operands))
        case "mul":
            return int(words[0]) * sum(int(x) * 10**i for i, x in enumerate(operands))
        case "mod":
            return int("".join(operands)) % int(words[0])
        case "max":
            return max(map(int, operands))
        case "clock":
            value = 0
            for sign, number in ((x[0], int(x[1:])) for x in operands):
                value = {"+": value + number, "-": value - number, "*": value * number}[sign]
            return value % 10
    return operands.count(words[0])


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.integers(1, 15))
def test_answers_are_right(family, seed, level):
    question, steps, answer = FAMILIES[family](random.Random(seed), level, Demonstrator(random.Random(0)))
    assert int(answer) == solve(question)
    # Before the last step the answer is already found: the final line repeats the scratchpad's result.
    assert NumericGrader().grade([Item(answer, f"{steps}\\boxed{{{answer}}}")]) == ["correct"]


@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_problems_have_the_promised_length_and_splits_are_disjoint_for_all_seeds(family):
    test = generate(family, "test", 300, seed=1)
    assert len({p.problem for p in test}) == 300
    assert generate(family, "test", 300, seed=1) == test != generate(family, "test", 300, seed=2)
    lengths = sorted(len(p.steps) + len(p.answer) + 3 for p in test)  # characters are tokens; \boxed{, }, end
    assert family in ENGLISH or (lengths[60] >= 40 and lengths[240] <= 100)
    splits = enumerate(("train", "validation", "test"))
    questions = [p.problem for seed, split in splits for p in generate(family, split, 200, seed)]
    assert len({*questions}) == len(questions)


def test_demonstrations_have_training_questions_and_both_kinds_of_response():
    stream = demonstrations(list(FAMILIES), "0", error_rate=0.1, direct_share=0.6)
    shown = [next(stream) for _ in range(1000)]
    assert all(split_of(question) == "train" for question, _ in shown)
    assert len({question.split()[0] for question, _ in shown if question.islower()}) == len(FAMILIES) - len(ENGLISH)
    direct = [response.startswith("\\boxed{") for _, response in shown]
    assert 0.55 < sum(direct) / 1000 < 0.65
    items = [Item(str(solve(question)), response) for question, response in shown]
    right = [outcome == "correct" for outcome in NumericGrader().grade(items)]
    assert all(r for r, d in zip(right, direct, strict=True) if d)
    assert 0.3 < sum(r for r, d in zip(right, direct, strict=True) if not d) / (1000 - sum(direct)) < 0.9


def test_levels_of_problems_and_demonstrations_are_those_asked_for():
    problems = generate("largest", "train", 30, seed=1, levels=[12, 14])
    assert {len(p.problem.split()) for p in problems} == {28, 32}
    shown = itertools.islice(demonstrations(["largest"], "0", 0.0, 0.0, levels=[13]), 20)
    assert {len(question.split()) for question, _ in shown} == {30}
