"""How long planning takes: `snakemake --dry-run` of a study of many methods, seeds and benchmarks.

    python benchmarks/dry_run.py                       20 methods × 10 seeds × 8 benchmarks
    python benchmarks/dry_run.py --methods 100 --seeds 20

Prints JSON: seconds, peak memory of the Snakemake process, and jobs by rule.
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
from pathlib import Path
from typing import Any

import yaml

from policygrain.methods import method_names

ROOT = Path(__file__).parents[1]


def study(methods: int, seeds: int, benchmarks: int, runs_per_engine: int) -> dict[str, Any]:
    """A study file laid over config.yaml: every run a job of its own."""
    presets = method_names()
    names = [f"method_{i:03d}" for i in range(methods)]
    return {
        "base": str(ROOT / "config.yaml"),
        "name": "many",
        "seeds": list(range(seeds)),
        "seeds_per_process": 1,
        "methods": {name: {"base": presets[i % len(presets)]} for i, name in enumerate(names)},
        "experiments": {"headline": {"methods": names}},
        "evaluation": {
            "runs_per_engine": runs_per_engine,
            "benchmarks": [{"name": f"benchmark_{i}", "source": "count"} for i in range(benchmarks)],
        },
    }


def measure(content: dict[str, Any], *profile: str) -> dict[str, Any]:
    """Plan it in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", folder]
        command += [*profile, "--dry-run", "--quiet", "rules", "--configfile", str(path), "--", "all"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    table = re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M)
    jobs = {rule: int(count) for rule, count in table}
    return {
        "seconds": round(seconds, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "jobs": jobs.pop("total"),
        "by_rule": jobs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("methods", 20), ("seeds", 10), ("benchmarks", 8), ("runs-per-engine", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = vars(parser.parse_args())
    print(json.dumps(asked | measure(study(**asked)), indent=1))


if __name__ == "__main__":
    main()
