"""Gold answers of the registered problem sets against themselves, and against 20 perturbations of each.

A perturbation is a small edit that changes the meaning. Accepted ones are false positives or equal by accident, which
has to be told apart by eye, so they are written to a file. It needs the problem sets, and no network.

    python benchmarks/perturbed_golds.py [--data FOLDER] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from policygrain.data.sets import SETS, data_root
from policygrain.data.sources import load
from policygrain.grading import Item, MathGrader, Options
from policygrain.grading.answers import without_box
from policygrain.grading.notation import normalize

EACH = 20
WORD = r"(?<![A-Za-z\\])[A-Za-z]{3,}"
Change = Callable[[random.Random, str], str]


def at(pattern: str, change: Change) -> Change:
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
    "another letter": at(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", other(*"abcdkmnpqrtuxyzABCDPQ")),
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
    parser.add_argument("--data", type=Path, help="folder of problem sets (default: POLICYGRAIN_DATA)")
    parser.add_argument("--out", type=Path, default=Path("accepted.jsonl"))
    arguments = parser.parse_args()
    root = data_root(arguments.data)
    here = [of.name for of in SETS.values() if (root / of.file).is_file()]
    problems = [p for name in here for p in load(name, root) if not p.options.tests]
    # Tolerances are left out: within one, another digit is right.
    golds = sorted({(without_box(p.answer), p.options.list_answer, p.options.text) for p in problems})
    pairs = [(gold, many, *edit) for gold, many, text in golds if not text for edit in perturbations(normalize(gold))]
    with MathGrader() as grader:
        items = [Item(gold, "", Options(as_list, text=text)) for gold, as_list, text in golds]
        unequal = [item.gold for item in grader.unreadable_golds(items)]
        outcomes = grader.compare([Item(gold, text, Options(as_list)) for gold, as_list, _, text in pairs])
    accepted = [pair for pair, outcome in zip(pairs, outcomes, strict=True) if outcome == "correct"]
    lines = [json.dumps({"gold": g, "kind": k, "answer": a}, ensure_ascii=False) for g, _, k, a in accepted]
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{len(golds):,} different gold answers; not equal to themselves: {len(unequal)} {unequal}\n")
    tried, counts = Counter(p[2] for p in pairs), Counter(p[2] for p in accepted)
    for kind in EDITS:
        print(f"| {kind} | {tried[kind]:,} | {counts[kind]} |")
    print(f"| all | {tried.total():,} | {counts.total()} |")


if __name__ == "__main__":
    main()
