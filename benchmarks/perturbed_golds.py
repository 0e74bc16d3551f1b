"""Gold answers of the registered problem sets against themselves, and against 20 perturbations of each.

A perturbation is a small edit that changes the meaning: another digit, sign, letter, word, order or bracket, an item
left out or added. Most accepted ones are false positives; the others are equal by accident (`ba` for `ab`) and have to
be told apart by eye, so all are written to a file.

    python benchmarks/perturbed_golds.py [--data FOLDER] [--out FILE]

It needs the problem sets, and no network.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from policygrain.grading import MathGrader
from policygrain.tasks.problem import Problem
from policygrain.tasks.registry import dataset, names
from policygrain.tasks.set_files import find
from policygrain.tasks.sources import load

EACH = 20
LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
QUALIFIERS = ["odd", "even", "north", "south", "profit", "loss", "thousand", "or more", "at most", "early", "late"]
BRACKETS = str.maketrans("()[]", "[]()")
Edit = Callable[[random.Random, str], str]


def at(pattern: str | re.Pattern[str], change: Callable[[random.Random, str], str]) -> Edit:
    """An edit of one match of ``pattern``."""

    def edit(draw: random.Random, gold: str) -> str:
        found = [*re.finditer(pattern, gold)]
        match = draw.choice(found) if found else None
        return gold[: match.start()] + change(draw, match[0]) + gold[match.end() :] if match else gold

    return edit


def other(letters: str) -> Callable[[random.Random, str], str]:
    return lambda draw, text: draw.choice([c for c in letters if c != text])


def shuffled(draw: random.Random, text: str) -> str:
    return "".join(draw.sample(text, len(text)))


EDITS: dict[str, Edit] = {
    "another digit": at(r"\d", other("0123456789")),
    "a digit added": at(r"\d", lambda draw, digit: digit + draw.choice("123456789")),
    "digits exchanged": at(r"\d\d", lambda _, digits: digits[::-1]),
    "another sign": at(r"^|[-+]", lambda _, sign: "+" if sign == "-" else "-"),
    "another letter": at(LETTER, other("abcdkmnpqrtuxyzABCDPQ")),
    "letters of a word in another order": at(WORD, shuffled),
    "another word": at(WORD, lambda draw, _: draw.choice(["even", "odd", "prime", "north", "other"])),
    "a word after it": lambda draw, gold: f"{gold} \\text{{ {draw.choice(QUALIFIERS)}}}",
    "an item left out": at(r"[^,;]+[,;]", lambda *_: ""),
    "an item added": lambda draw, gold: f"{gold}, {draw.randrange(2, 99)}",
    "other brackets": at(r"[()\[\]]", lambda draw, bracket: bracket.translate(BRACKETS)),
    "another function": at(r"\\(?:sqrt|sin|cos|tan|ln|log|le|ge|cup)\b", other(["\\sqrt", "\\sin", "\\ln", "\\cos"])),
    "inverted": lambda _, gold: f"\\frac{{1}}{{{gold}}}",
    "one more": lambda draw, gold: f"{gold} + {draw.randrange(1, 9)}",
}


def perturbations(gold: str) -> list[tuple[str, str]]:
    """(kind, text) of at most EACH different perturbations of a gold answer."""
    draw, found = random.Random(gold), dict[str, str]()
    for _ in range(20 * EACH):
        kind = draw.choice([*EDITS])
        text = EDITS[kind](draw, gold)
        if "".join(text.split()) != "".join(gold.split()) and len(found) < EACH:
            found.setdefault(text, kind)
    return [(kind, text) for text, kind in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    folder = os.environ.get("POLICYGRAIN_DATA", Path(__file__).parents[2] / "shared" / "benchmarks")
    parser.add_argument("--data", type=Path, default=Path(folder), help="folder of problem sets")
    parser.add_argument("--out", type=Path, default=Path("accepted.jsonl"), help="accepted perturbations, to be judged")
    arguments = parser.parse_args()
    sets = [name for name in names() if find(dataset(name), arguments.data)]
    problems: list[Problem] = [p for name in sets for p in load(name, arguments.data) if not p.options.tests]
    golds = [*{(p.answer, p.options) for p in problems}]
    pairs = [(gold, options, *edit) for gold, options in golds for edit in perturbations(gold)]
    with MathGrader() as grader:
        own = grader.compare([g for g, _ in golds], [g for g, _ in golds], [o for _, o in golds])
        outcomes = grader.compare([p[0] for p in pairs], [p[3] for p in pairs], [p[1] for p in pairs])
    tried, accepted = Counter(kind for _, _, kind, _ in pairs), Counter[str]()
    with arguments.out.open("w") as lines:
        for (gold, _, kind, text), outcome in zip(pairs, outcomes, strict=True):
            if outcome == "correct":
                accepted[kind] += 1
                lines.write(json.dumps({"kind": kind, "gold": gold, "answer": text}, ensure_ascii=False) + "\n")
    print(f"{len(sets)} sets, {len(golds)} different gold answers, {own.count('correct')} equal to themselves")
    for kind, count in sorted(tried.items()):
        print(f"| {kind} | {count:,} | {accepted[kind]} |")
    print(f"| all | {len(pairs):,} | {accepted.total()} |")


if __name__ == "__main__":
    main()
