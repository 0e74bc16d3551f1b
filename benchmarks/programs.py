"""Programs graded per second: the code grader's sandbox beside a plain interpreter for each program.

240 ordinary programs (a function of a few lines, three tests, all right) on two warm workers, in rounds that take
turns with the peer: what trainers without a sandbox do, a fresh `python` per program with its tests in it, two at a
time, which any program could cheat and which keeps nothing apart.

    python benchmarks/programs.py [--rounds 5] [--out results/benchmarks/programs.json]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import parser_of, provenance, save
from policygrain.grading import CodeGrader, Item, Options
from policygrain.grading.sandbox import isolation

WORKERS = 2
PROGRAM = """def first_words(text, n={n}):
    words = [word.strip('.,') for word in text.split()]
    return sorted(set(words[:n]), key=lambda word: (len(word), word))
"""
TESTS = """def check(candidate):
    assert candidate('the cat, the dog.') == ['cat', 'dog', 'the']
    assert candidate('') == []
    assert candidate('a a a', 2) == ['a']
"""


def sandboxed(grader: CodeGrader, programs: list[str]) -> None:
    options = Options(tests=TESTS, entry_point="first_words")
    assert set(grader.grade([Item("", program, options) for program in programs])) == {"correct"}


def plain(programs: list[str]) -> None:
    def run(program: str) -> int:
        command = [sys.executable, "-I", "-c", f"{program}\n{TESTS}\ncheck(first_words)"]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(WORKERS) as pool:
        assert set(pool.map(run, programs)) == {0}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side")
    parser.add_argument("--programs", type=int, default=240, help="programs in a round")
    arguments = parser.parse_args()

    programs = [PROGRAM.format(n=5 + i) for i in range(arguments.programs)]
    seconds: dict[str, list[float]] = {"sandbox": [], "plain interpreter": []}
    with CodeGrader(workers=WORKERS) as grader:
        sandboxed(grader, programs[:8])  # workers are warm
        for _ in range(arguments.rounds):
            for name, call in (
                ("sandbox", lambda: sandboxed(grader, programs)),
                ("plain interpreter", lambda: plain(programs)),
            ):
                begin = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - begin)
    rates = {name: [len(programs) / s for s in values] for name, values in seconds.items()}
    report: dict[str, Any] = {
        **provenance(),
        "isolation": isolation(),
        "workers": WORKERS,
        "programs": len(programs),
        "per_second": {
            name: {"median": statistics.median(v), "min": min(v), "max": max(v)} for name, v in rates.items()
        },
    }
    for name, row in report["per_second"].items():
        print(f"{name}: {row['median']:.0f} programs a second, {row['min']:.0f} to {row['max']:.0f}")
    save(report, arguments.out)


if __name__ == "__main__":
    main()
