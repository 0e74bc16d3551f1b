"""Steps of a run whose rollout server samples during updates, beside a server that the trainer waits for and no server.

The first steps of a run of studies/smollm2.yaml without dynamic sampling (batches of equal size), one thread for the
trainer and one for the server. The runs are made one after another, each with the machine to itself; the first steps,
in which a server starts, are not counted.

    python benchmarks/overlap.py models/smollm2-135m-instruct [--steps 8] [--out benchmarks/overlap.json]
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import argparse
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from policygrain.files import atomic_json
from policygrain.provenance import commit, hardware, versions
from policygrain.results.layout import RunFolder
from policygrain.results.reader import run_timings

STUDY = Path(__file__).parents[1] / "studies" / "smollm2.yaml"
SERVER = {"where": "servers", "servers": 1, "wait_minutes": 5.0}
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "no server": ({}, 1),
    "a server, waited for": (SERVER, 0),
    "a server, during updates": (SERVER, 1),
}
FIRST = 2  # steps that are not counted


def seconds_of(model: str, rollouts: dict[str, Any], ahead: int, steps: int, place: Path) -> dict[str, list[float]]:
    """Seconds of each counted step: in all, and of its longest phases."""
    training = {"steps": steps, "ahead": ahead, "validate_every": 100, "checkpoint_every": 100}
    content = {
        "base": str(STUDY),
        "name": "overlap",
        "model": {"start": str(Path(model).resolve())},
        "training": training,
        "rollouts": rollouts,
        "methods": {"grpo": {"sampler": {"dynamic": False}}},
    }
    (place / "study.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "policygrain.cli", "train", "--config", str(place / "study.yaml")]
    subprocess.run([*command, "--arm", "grpo", "--seed", "0", "--run-dir", str(place / "run")], check=True)
    rows = run_timings(RunFolder(place / "run"))[FIRST:]
    names = ("seconds/total", "seconds/generate", "seconds/log_probs", "seconds/update")
    return {name.removeprefix("seconds/"): [row.get(name, 0.0) for row in rows] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        "steps": arguments.steps - FIRST,
        "runs": {},
    }
    for name, (rollouts, ahead) in RUNS.items():
        with tempfile.TemporaryDirectory() as place:
            found = seconds_of(arguments.model, rollouts, ahead, arguments.steps, Path(place))
        report["runs"][name] = {
            phase: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for phase, values in found.items()
        }
        print(name, {phase: f"{spread['median']:.1f} s" for phase, spread in report["runs"][name].items()}, flush=True)
    if arguments.out:
        atomic_json(arguments.out, report)


if __name__ == "__main__":
    main()
