"""The synthetic families, functions (random numbers, level, demonstrator) → (question, steps, answer).

Seven have long solutions in a notation that a tiny model can learn; three are in plain English, for pretrained models.
A step that the demonstrator gets wrong is continued with its wrong result. Higher levels are longer.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .problem import Problem

if TYPE_CHECKING:
    from ..study.schema import Study


@dataclass
class Demonstrator:
    """The result of a worked step: the right one, or with probability ``error_rate`` one next to it."""

    rng: random.Random
    error_rate: float = 0.0

    def __call__(self, result: int) -> int:
        """``result``, or perhaps a wrong one."""
        if self.error_rate and self.rng.random() < self.error_rate:
            return result + 1 if result == 0 or self.rng.random() < 0.5 else result - 1
        return result


Worked = tuple[str, str, str]
Family = Callable[[random.Random, int, Demonstrator], Worked]

PAD, EOS, BOXED = "<|pad|>", "<|end|>", "\\boxed{"
# Of problems and worked solutions: the vocabulary of a tiny model, in the order of its token ids.
CHARACTERS = (PAD, EOS, BOXED, *string.digits, *string.ascii_lowercase, *"+-*/%=<>:;,.?(){}\\ \n")

LEVELS = (1, 2, 3)


def running_total(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """Add small numbers one after the other."""
    numbers = [rng.randint(1, 5) for _ in range(3 + 2 * level)]
    total, steps = 0, ""
    for label, number in labelled(numbers):
        before, total = total, demonstrator(total + number)
        steps += f"{label}{number}+{before}={total};"
    return f"total {_text(numbers)}", steps, str(total)


def long_addition(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """Add two numbers written in columns, units first, with a carry."""
    columns = [(rng.randint(0, 7), rng.randint(0, 7)) for _ in range(3 + level)]
    carry, result, steps = 0, "", ""
    for label, (x, y) in labelled(columns):
        column = demonstrator(x + y + carry)
        carry, result = column // 10, str(column % 10) + result
        steps += f"{label}{x}{y}={column:02d}>{result};"
    return f"add {_text(f'{x}{y}' for x, y in columns)}", steps, (str(carry) if carry else "") + result


def long_multiplication(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """Multiply a number, its digits written units first, by a single digit, with a carry."""
    digits, factor = [rng.randint(1, 9) for _ in range(3 + level)], rng.randint(2, 4)
    carry, result, steps = 0, "", ""
    for label, x in labelled(digits):
        column = demonstrator(x * factor + carry)
        steps += f"{label}{x}*{factor}+{carry}={column:02d};"
        carry, result = column // 10, str(column % 10) + result
    return f"mul {factor} {_text(digits)}", steps, (str(carry) if carry else "") + result


def remainder(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """The remainder of a number, its digits written from the left, divided by a single digit."""
    digits, divisor = [rng.randint(1, 9) for _ in range(3 + 2 * level)], rng.randint(3, 5)
    rest, steps = 0, ""
    for label, x in labelled(digits):
        before, rest = rest, demonstrator((10 * rest + x) % divisor) % divisor
        steps += f"{label}{before}{x}%{divisor}={rest};"
    return f"mod {divisor} {_text(digits)}", steps, str(rest)


def clock(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """A chain of operations modulo 10."""
    operations = [(rng.choice("+-*"), rng.randint(2, 4)) for _ in range(3 + 2 * level)]
    value, steps = 0, ""
    for label, (sign, number) in labelled(operations):
        result = {"+": value + number, "-": value - number, "*": value * number}[sign] % 10
        before, value = value, demonstrator(result) % 10
        steps += f"{label}{sign}{number},{before}={value};"
    return f"clock {_text(f'{sign}{number}' for sign, number in operations)}", steps, str(value)


def largest(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """The largest of several two-digit numbers, compared one after the other; an error takes the smaller one."""
    numbers = [rng.randint(10, 99) for _ in range(3 + 2 * level)]
    best, steps = 0, ""
    for label, number in labelled(numbers):
        choose = max if demonstrator(0) == 0 else min
        before, best = best, choose(best, number)
        steps += f"{label}{number},{before:02d}>{best:02d};"
    return f"max {_text(numbers)}", steps, str(best)


def count(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """The number of occurrences of a digit, with a running count."""
    wanted = rng.randint(0, 9)
    digits = [wanted if rng.random() < 0.4 else rng.randint(0, 9) for _ in range(5 + 3 * level)]
    tally, steps = 0, ""
    for label, digit in labelled(digits):
        tally = demonstrator(tally + (digit == wanted))
        steps += f"{label}{digit}{'+' if digit == wanted else '-'}{tally};"
    return f"count {wanted} in {_text(digits)}", steps, str(tally)


def labelled(operands: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    """Operands with labels, in question and steps, by which a small model can look up the next one."""
    return zip((*string.ascii_lowercase, *(f"z{letter}" for letter in string.ascii_lowercase)), operands, strict=False)


def _text(operands: Iterable[object]) -> str:
    return " ".join(f"{label}{operand}" for label, operand in labelled(operands))


NAMES = ("Tom", "Anna", "Sam", "Lucy", "Ben", "Mia", "Jack", "Nora")
THINGS = ("apples", "books", "coins", "eggs", "pens", "cards", "shells", "stamps")
GAINS, LOSSES = ("buys", "finds", "gets"), ("eats", "loses", "gives away", "sells")


def plain_sum(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """A sum or a difference of two numbers, asked for in plain English."""
    most = (20, 60, 99)[min(level, 3) - 1]
    x, y = rng.randint(1, most), rng.randint(1, most)
    if rng.random() < 0.5:
        return f"What is {x} plus {y}?", f"{x} + {y} = {demonstrator(x + y)}. ", str(x + y)
    x, y = max(x, y), min(x, y)
    return f"What is {x} minus {y}?", f"{x} - {y} = {demonstrator(x - y)}. ", str(x - y)


def word_problem(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """A person gains and loses things, one to three times."""
    who, things = rng.choice(NAMES), rng.choice(THINGS)
    have = rng.randint(2, 12)
    told, steps = f"{who} has {have} {things}.", ""
    for _ in range(level):
        before = have
        if have > 3 and rng.random() < 0.4:
            change = rng.randint(1, have - 1)
            told += f" {who} {rng.choice(LOSSES)} {change} of them."
            sign, have = "-", demonstrator(have - change)
        else:
            change = rng.randint(1, 9)
            told += f" {who} {rng.choice(GAINS)} {change} more."
            sign, have = "+", demonstrator(have + change)
        steps += f"{before} {sign} {change} = {have}. "
    return f"{told} How many {things} does {who} have now?", steps, str(have)


def char_count(rng: random.Random, level: int, demonstrator: Demonstrator) -> Worked:
    """How often a letter occurs in a word that is spelled out; the task of verl's recipe of this name."""
    length = rng.randint(5 * level, 5 * level + 5)
    wanted, number = rng.choice(string.ascii_lowercase), rng.randint(1, length)
    others = [letter for letter in string.ascii_lowercase if letter != wanted]
    word = [wanted] * number + rng.choices(others, k=length - number)
    rng.shuffle(word)
    tally, steps = 0, ""
    for letter in word:
        same = (letter == wanted) == (demonstrator(0) == 0)
        tally += same
        steps += f"{letter} {'=' if same else '!='} {wanted}.\n"
    return f"How many {wanted} are there in word {'-'.join(word)}?", steps, str(tally)


ARITHMETIC = (running_total, long_addition, long_multiplication, remainder, clock, largest, count)
ENGLISH = (plain_sum, word_problem, char_count)
FAMILIES: dict[str, Family] = {family.__name__: family for family in ARITHMETIC + ENGLISH}


def split_of(question: str) -> str:
    """The split of a question, which depends only on its text, so splits share no question."""
    bucket = zlib.crc32(question.encode()) % 10
    return "validation" if bucket == 0 else "test" if bucket <= 2 else "train"


def generate(family: str, split: str, size: int, seed: int, levels: Sequence[int] = LEVELS) -> list[Problem]:
    """``size`` distinct problems of a family and split, of these levels in turn; fewer if the family has fewer."""
    rng = random.Random(f"{family}/{split}/{seed}")
    correct = Demonstrator(rng)
    seen: dict[str, Problem] = {}
    for attempt in range(200 * size):
        if len(seen) == size:
            break
        question, steps, answer = FAMILIES[family](rng, levels[attempt % len(levels)], correct)
        if question not in seen and split_of(question) == split:
            identity = f"{family}-{split}-{len(seen):05d}"
            seen[question] = Problem(identity, question, answer, family, steps)
    return list(seen.values())


def families_to_demonstrate(study: Study) -> list[str]:
    """The families among a study's training problems. UserError if an initial model is to be fine-tuned on none."""
    families = [source for source in study.data.train if source in FAMILIES]
    if study.model.sft is not None and not families:
        raise UserError("model.sft: only synthetic families (data.train) have demonstrations; set it to null.")
    if study.model.start == "tiny" and study.model.warm_start.steps and not families:
        raise UserError("model.warm_start.steps: only synthetic families have demonstrations; set it to 0.")
    return families


def demonstrations(
    families: list[str], seed: str, error_rate: float, direct_share: float, levels: Sequence[int] = LEVELS
) -> Iterator[tuple[str, str]]:
    """Endless (question, response) of the train split; with probability ``direct_share`` only the answer."""
    rng = random.Random(f"demonstrations/{seed}")
    demonstrator = Demonstrator(rng, error_rate)
    while True:
        family, direct = FAMILIES[rng.choice(families)], rng.random() < direct_share
        question, steps, answer = family(rng, rng.choice(levels), Demonstrator(rng) if direct else demonstrator)
        if split_of(question) == "train":
            yield question, ("" if direct else steps) + f"\\boxed{{{answer}}}"
