"""How long planning takes: `snakemake --dry-run` of a study of many methods, seeds and benchmarks.

20 methods × 10 seeds × 8 benchmarks by default, twice: with few jobs (one engine evaluates 20 models) and with many
(one engine per model, and eight jobs that sample its responses).

    python benchmarks/dry_run.py [--profile slurm] [--out benchmarks/dry_run.json]

Prints JSON: seconds (of the clock and of processors), peak memory of the Snakemake process, and jobs by rule.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from policygrain.files import atomic_json
from policygrain.methods import method_names
from policygrain.provenance import commit, hardware, versions

ROOT = Path(__file__).parents[1]


GRAINS = {"few jobs": {"runs_per_engine": 20, "parts": 1}, "many jobs": {"runs_per_engine": 1, "parts": 8}}


def study(methods: int, seeds: int, benchmarks: int, grain: dict[str, int]) -> dict[str, Any]:
    """A study file based on config.yaml, in which every run is a job of its own."""
    presets = method_names()
    names = [f"method_{i:03d}" for i in range(methods)]
    return {
        "base": str(ROOT / "config.yaml"),
        "name": "many",
        "seeds": list(range(seeds)),
        "seeds_per_process": 1,
        "methods": {name: {"base": presets[i % len(presets)]} for i, name in enumerate(names)},
        "experiments": {"headline": {"methods": names}},
        **dict.fromkeys(("estimators", "rounds", "controls", "sequential")),
        "evaluation": {
            **grain,
            "after_training": False,
            "benchmarks": [{"name": f"benchmark_{i}", "source": "count"} for i in range(benchmarks)],
        },
    }


def measure(content: dict[str, Any], *profile: str) -> dict[str, Any]:
    """Seconds, memory and jobs of a dry run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", folder]
        command += [*profile, "--dry-run", "--quiet", "rules", "--configfile", str(path), "--", "all"]
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    table = re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    jobs = {rule: int(count) for rule, count in table}
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_mb": round(after.ru_maxrss / 1024),
        "jobs": jobs.pop("total"),
        "by_rule": jobs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("methods", 20), ("seeds", 10), ("benchmarks", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", help="Snakemake profile (default: jobs run on this machine)")
    parser.add_argument("--out", type=Path, help="JSON file for the numbers")
    arguments = parser.parse_args()
    size = {name: vars(arguments)[name] for name in ("methods", "seeds", "benchmarks")}
    profile = ["--profile", arguments.profile] if arguments.profile else []
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "commit": commit(),
        **size,
        "profile": arguments.profile,
        **{name: measure(study(**size, grain=grain), *profile) for name, grain in GRAINS.items()},
    }
    print(json.dumps(report, indent=1))
    if arguments.out:
        atomic_json(arguments.out, report)


if __name__ == "__main__":
    main()
