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

from policygrain.grading import MathGrader, Options
from policygrain.grading.math import without_box
from policygrain.grading.notation import normalize
from policygrain.tasks.registry import dataset, names
from policygrain.tasks.set_files import find
from policygrain.tasks.sources import load

EACH = 20
LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
Change = Callable[[random.Random, str], str]


def at(pattern: str | re.Pattern[str], change: Change) -> Change:
    """An edit of one match of ``pattern``."""

    def edit(draw: random.Random, gold: str) -> str:
        found = [*re.finditer(pattern, gold)]
        match = draw.choice(found) if found else None
        return gold[: match.start()] + change(draw, match[0]) + gold[match.end() :] if match else gold

    return edit


def other(*choices: str) -> Change:
    return lambda draw, text: draw.choice([c for c in choices if c != text])


EDITS: dict[str, Change] = {
    "another digit": at(r"\d", other(*"0123456789")),
    "a digit added": at(r"\d", lambda draw, digit: digit + draw.choice("123456789")),
    "digits exchanged": at(r"\d\d", lambda _, digits: digits[::-1]),
    "another sign": at(r"^|[-+]", lambda _, sign: "+" if sign == "-" else "-"),
    "another letter": at(LETTER, other(*"abcdkmnpqrtuxyzABCDPQ")),
    "letters of a word in another order": at(WORD, lambda draw, text: "".join(draw.sample(text, len(text)))),
    "another word": at(WORD, other("even", "odd", "prime", "north", "other")),
    "a word that changes the value": at(r"$", other(*[f"\\text{{ {w}}}" for w in ("dozen", "squared", "or more")])),
    "an item left out": at(r"[^,;]+[,;]", lambda *_: ""),
    "an item added": at(r"$", lambda draw, _: f", {draw.randrange(2, 99)}"),
    "other brackets": at(r"[()\[\]]", lambda _, bracket: bracket.translate(str.maketrans("()[]", "[]()"))),
    "another function": at(r"\\(?:sqrt|sin|cos|tan|ln|log)\b", other("\\sqrt", "\\sin", "\\ln", "\\cos")),
    "inverted": lambda _, gold: f"\\frac{{1}}{{{gold}}}",
    "one more": at(r"$", lambda draw, _: f" + {draw.randrange(1, 9)}"),
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
    problems = [p for n in names() if find(dataset(n), arguments.data) for p in load(n, arguments.data)]
    # Tolerances are left out: within one, another digit is right.
    golds = sorted({(without_box(p.answer), p.options.list_answer, p.options.text) for p in problems if p.answer})
    pairs = [
        (gold, as_list, *edit) for gold, as_list, text in golds if not text for edit in perturbations(normalize(gold))
    ]
    with MathGrader() as grader:
        unequal = [g for g, as_list, text in golds if grader.unreadable_golds([g], Options(as_list, text=text))]
        options = [Options(list_answer=as_list) for _, as_list, _, _ in pairs]
        outcomes = grader.compare([p[0] for p in pairs], [p[3] for p in pairs], options)
    accepted = [pair for pair, outcome in zip(pairs, outcomes, strict=True) if outcome == "correct"]
    lines = [
        json.dumps(dict(zip(("gold", "list", "kind", "answer"), p, strict=True)), ensure_ascii=False) for p in accepted
    ]
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{len(golds):,} different gold answers; not equal to themselves: {len(unequal)} {unequal}\n")
    tried, counts = Counter(p[2] for p in pairs), Counter(p[2] for p in accepted)
    for kind in EDITS:
        print(f"| {kind} | {tried[kind]:,} | {counts[kind]} |")
    print(f"| all | {tried.total():,} | {counts.total()} |")


if __name__ == "__main__":
    main()
