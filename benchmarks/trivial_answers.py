r"""Published gold answers against themselves, and against trivial answers that a reward must not accept.

To every gold answer that is no plain integer: twenty fixed answers (`0`, `x`, `\emptyset`, `0=0`, …), its letters, and
its parts at equality signs, inequality signs and commas. Accepted ones are printed to be judged by eye:
a part can be right (`5` for `x = 5`, `20` for `20\text{ days}`).

    python benchmarks/trivial_answers.py [--data FOLDER]

It needs the problem sets (JSON Lines with `answer`), and no network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

from policygrain.grading import Item, MathGrader

FIXED = ["0", "1", "-1", "2", "x", "n", "A", "B", "i", "e", "()", "=", "0=0", "x=x"]
FIXED += ["\\pi", "\\emptyset", "\\{\\}", "\\infty", "\\text{none}", "\\mathbb{R}"]
SEPARATORS = re.compile(r"=|<|>|\\(?:le|ge|leq|geq|in|cup)(?![a-zA-Z])|,")


def trivial(gold: str) -> list[str]:
    parts = [part.strip(" $") for part in SEPARATORS.split(gold)]
    letters = re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", gold)
    answers = dict.fromkeys([*FIXED, *letters, *(parts if len(parts) > 1 else [])])
    return [answer for answer in answers if answer and answer != gold.strip(" $")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    folder = os.environ.get("POLICYGRAIN_DATA", Path(__file__).parents[2] / "shared" / "benchmarks")
    parser.add_argument("--data", type=Path, default=Path(folder), help="folder of problem sets")
    arguments = parser.parse_args()
    files = sorted(arguments.data.glob("*.jsonl"))
    golds = [*{json.loads(line)["answer"] for file in files for line in file.read_text().split("\n") if line}]
    with MathGrader() as grader:
        unreadable = {item.gold for item in grader.unreadable_golds([Item(gold, "") for gold in golds])}
        pairs = [(g, a) for g in sorted({*golds} - unreadable) if not re.fullmatch(r"-?[\d,]+", g) for a in trivial(g)]
        outcomes = grader.compare([Item(*pair) for pair in pairs])
    accepted = [pair for pair, outcome in zip(pairs, outcomes, strict=True) if outcome == "correct"]
    for gold, answer in accepted:
        print(f"{gold!r} <- {answer!r}")
    print(f"{len(golds)} gold answers, {len(unreadable)} unreadable: {sorted(unreadable)}")
    print(f"{len(pairs)} trivial answers, {len(accepted)} accepted, {outcomes.count('timeout')} timeouts")


if __name__ == "__main__":
    main()
