"""How long commands that compute nothing take: seconds from the start of the process to its end.

`policygrain methods`, `check` and `figure`, on the records of a made-up study of smoke.yaml's size, beside
`python -c pass` and `policygrain --help`. Commands take turns; a number is the median over rounds, after one round that
is not counted.

    python benchmarks/cli_start.py [--rounds 7] [--out benchmarks/cli_start.json]

Under a minute. The targets are for an idle machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' made-up records

from common import parser_of, provenance, save
from policygrain.study import load_study
from tests.support.made_up import make_up

ROOT = Path(__file__).parents[1]
TARGETS = {"methods": 1.0, "check": 1.0, "figure": 2.0}  # seconds


def commands(folder: Path) -> dict[str, list[str]]:
    """Name → command; writes the records that they read into ``folder``."""
    results = make_up(load_study(ROOT / "studies" / "smoke.yaml"), folder / "study", {"tepo": 9})
    study = ["--config", str(results / "study.yaml")]
    policygrain = [sys.executable, "-m", "policygrain.cli"]
    return {
        "python": [sys.executable, "-c", "pass"],
        "help": [*policygrain, "--help"],
        "methods": [*policygrain, "methods"],
        "check": [*policygrain, "check", study[1]],
        "figure": [*policygrain, "figure", "benchmarks", *study, "--results", str(results)],
    }


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of one run."""
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def measure(rounds: int) -> dict[str, Any]:
    """Median, fastest and slowest seconds of each command."""
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        chosen = commands(Path(folder))
        for command in chosen.values():
            seconds(command)
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(rounds):
            for name, command in chosen.items():
                times[name].append(seconds(command))
    return {
        name: {
            **{"median": round(statistics.median(all_), 3), "fastest": round(min(all_), 3)},
            **{"slowest": round(max(all_), 3), "target": TARGETS.get(name)},
        }
        for name, all_ in times.items()
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    report = {
        **provenance(),
        "rounds": arguments.rounds,
        "seconds": measure(arguments.rounds),
    }
    print(json.dumps(report, indent=1))
    save(report, arguments.out)


if __name__ == "__main__":
    main()
