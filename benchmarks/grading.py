r"""Answers graded per second, beside math-verify in a serial loop with its own timeouts.

Gold answers are those of real problem sets, each problem with the same weight. An answer to each is chosen at random:
the gold answer as it stands (half), written another way (a quarter: `\dfrac`, a trailing `.0`, braces),
or with one of its numbers changed (a quarter). All (gold, answer) pairs of a round are distinct.

Two scenarios:

- `ordinary`: such answers alone. The serial loop grades a part of them, since it is slower.
- `hostile`: 1% of the answers cost the serial loop its whole timeout of 5 s (towers of powers, factorials of
  factorials, integrals that have no closed form), each one different.

The serial loop is what math-verify's documentation shows, `verify(parse(gold), parse(answer))`, with everything boxed
and timeouts of 5 s. Both sides grade the same answers in turn, a round each. PolicyGrain's processes are started before
the first round; how long that takes is reported separately. The number of different outcomes is reported, too: see
docs/grading.md for what PolicyGrain decides differently.

    python benchmarks/grading.py [--data FOLDER] [--rounds 3] [--answers 6000] [--out FILE.json]

It needs the problem sets (JSON Lines with `answer`), about four minutes, and no network.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from math_verify import parse, verify

from common import parser_of, provenance, save
from policygrain.grading import Item, MathGrader

SEED = 0
TIMEOUT = 5  # seconds of the serial loop
Pair = tuple[str, str]  # gold, answer


def pairs(golds: list[str], count: int, draw: random.Random) -> list[Pair]:
    """``count`` distinct pairs, each of a random gold answer and an answer made from it."""
    found: dict[Pair, None] = {}
    while len(found) < count:
        gold = draw.choice(golds)
        found[gold, draw.choice([same, same, rewritten, changed])(gold, draw)] = None
    return list(found)


def same(gold: str, draw: random.Random) -> str:
    return gold


def rewritten(gold: str, draw: random.Random) -> str:
    if re.fullmatch(r"-?\d+", gold):
        return f"{gold}.0"
    return gold.replace("\\frac", "\\dfrac") if "\\frac" in gold else f"{{{gold}}}"


def changed(gold: str, draw: random.Random) -> str:
    numbers = [*re.finditer(r"\d+", gold)]
    if not numbers:
        return f"{gold} + {draw.randint(1, 9)}"
    number = draw.choice(numbers)
    return f"{gold[: number.start()]}{int(number.group()) + draw.randint(1, 9)}{gold[number.end() :]}"


def hostile(number: int) -> Pair:
    """The ``number``-th answer that takes a long time: each kind in turn."""
    kinds = [
        ("\\sqrt{7}", f"{7 + number}^{{10^{{10^{{10}}}}}}"),
        ("\\sqrt{7}", f"((({9 + number}!)!)!)!"),
        ("\\sqrt{7}", f"\\int_0^{{{100 + number}}} \\sin(\\sin(\\cos(x^7)))^{{33}} dx"),
    ]
    return kinds[number % len(kinds)]


def serial(tasks: list[Pair]) -> list[bool]:
    """math-verify alone, one answer after another."""
    return [
        verify(
            parse(f"\\boxed{{{gold}}}", parsing_timeout=TIMEOUT),
            parse(f"\\boxed{{{answer}}}", parsing_timeout=TIMEOUT),
            timeout_seconds=TIMEOUT,
        )
        for gold, answer in tasks
    ]


def graded(grader: MathGrader, tasks: list[Pair]) -> list[str]:
    return grader.compare([Item(*task) for task in tasks])


def timed(function: Any, *arguments: Any) -> tuple[float, list[Any]]:
    begin = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - begin, result


def compare(grader: MathGrader, ours: list[Pair], theirs: list[Pair]) -> dict[str, Any]:
    """One round of both; ``theirs`` begin as ``ours`` do."""
    seconds, outcomes = timed(graded, grader, ours)
    serial_seconds, others = timed(serial, theirs)
    return {
        "policygrain": {"answers": len(ours), "seconds": seconds, "answers_per_s": len(ours) / seconds},
        "serial": {"answers": len(theirs), "seconds": serial_seconds, "answers_per_s": len(theirs) / serial_seconds},
        "ratio": (len(ours) / seconds) / (len(theirs) / serial_seconds),
        "outcomes": dict(Counter(outcomes)),
        "different": sum((o == "correct") != v for o, v in zip(outcomes, others, strict=False)),
    }


def main() -> None:
    parser = parser_of(__doc__)
    folder = os.environ.get("POLICYGRAIN_DATA", Path(__file__).parents[2] / "shared" / "benchmarks")
    parser.add_argument("--data", type=Path, default=Path(folder), help="folder of problem sets")
    parser.add_argument("--rounds", type=int, default=3, help="of ordinary answers; hostile ones have a single round")
    parser.add_argument("--answers", type=int, default=6000, help="ordinary answers in a round")
    parser.add_argument("--serial", type=int, default=600, help="of them, how many the serial loop grades")
    parser.add_argument("--hostile", type=int, default=10, help="in the second scenario, among 100 times as many")
    arguments = parser.parse_args()

    logging.disable(logging.CRITICAL)
    draw = random.Random(SEED)
    with MathGrader() as grader:
        files = sorted(arguments.data.glob("*.jsonl"))
        golds = [json.loads(line)["answer"] for file in files for line in file.read_text().split("\n") if line]
        unreadable = {item.gold for item in grader.unreadable_golds([Item(gold, "") for gold in golds])}
        golds = [gold for gold in golds if gold not in unreadable]
        grader.close()
        start, _ = timed(grader.compare, [Item("x + 1", "1 + x + 0")])
        rounds = []
        for _ in range(arguments.rounds):
            tasks = pairs(golds, arguments.answers, draw)
            rounds.append(compare(grader, tasks, tasks[: arguments.serial]))
        tasks = pairs(golds, 99 * arguments.hostile, draw) + [hostile(i) for i in range(arguments.hostile)]
        draw.shuffle(tasks)
        with_hostile = compare(grader, tasks, tasks)
        rates = [r["policygrain"]["answers_per_s"] for r in rounds]
        report = {
            **provenance(),
            "grader": grader.name,
            "workers": grader.pool.workers,
            "serial_timeout_s": TIMEOUT,
            "start_s": start,
            "ordinary": {"rounds": rounds, "median_answers_per_s": statistics.median(rates)},
            "hostile": with_hostile,
        }
    for name, row in [*(("ordinary", r) for r in rounds), ("hostile", with_hostile)]:
        ours, theirs = row["policygrain"]["answers_per_s"], row["serial"]["answers_per_s"]
        print(
            f"{name:9} PolicyGrain {ours:7.0f}/s  serial {theirs:6.0f}/s  ratio {row['ratio']:.1f}  {row['outcomes']}"
        )
    save(report, arguments.out)


if __name__ == "__main__":
    main()
