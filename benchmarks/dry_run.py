"""How long planning takes: `snakemake --dry-run` of a study of many methods, seeds and benchmarks.

20 methods × 64 seeds × 8 benchmarks by default, of which nothing or everything is there; and what a job of a cluster
pays: Snakemake reads the workflow again inside each.

    python benchmarks/dry_run.py [--profile slurm] [--out benchmarks/dry_run.json]

Prints JSON: seconds (of the clock and of processors), peak memory of the Snakemake process, and jobs by rule.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from common import parser_of, provenance, save
from policygrain.objective import method_names

ROOT = Path(__file__).parents[1]


def study(methods: int, seeds: int, benchmarks: int) -> dict[str, Any]:
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
        "evaluation": {
            "after_training": False,
            "benchmarks": [{"name": f"benchmark_{i}", "source": "count"} for i in range(benchmarks)],
        },
    }


# Runs a command and prints its costs.
TIMED = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
sys.exit(code)
"""


def snakemake(folder: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """The output of a call for the study in ``folder``, with its seconds and memory."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", folder]
    command += ["--configfile", str(Path(folder) / "study.yaml"), *arguments]
    # A process of its own for each, because `ru_maxrss` is the largest of all children so far.
    timed = [sys.executable, "-c", TIMED, *command]
    done = subprocess.run(timed, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    output, _, numbers = done.stdout.strip().rpartition("\n")
    seconds, cpu_seconds, peak = json.loads(numbers)
    costs = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1), "peak_mb": round(peak)}
    return output + done.stderr, costs


def measure(content: dict[str, Any], *profile: str) -> dict[str, Any]:
    """Seconds, memory and jobs of a dry run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.yaml").write_text(yaml.safe_dump(content))
        output, costs = snakemake(folder, *profile, "--dry-run", "--quiet", "rules", "--", "all")
    jobs = {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, re.M)}
    return {**costs, "jobs": jobs.pop("total"), "by_rule": jobs}


def measure_finished(content: dict[str, Any], *profile: str) -> dict[str, Any]:
    """A dry run where everything is finished, and of one training job, which reads the workflow as on a cluster."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.yaml").write_text(yaml.safe_dump(content))
        lines = snakemake(name, "--summary", "all")[0].splitlines()
        outputs = [folder / line.split("\t")[0] for line in lines if line.startswith("results/")]
        for path in outputs:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        now = time.time()
        for path in folder.rglob("*"):
            os.utime(path, (now, now))
        planned, whole = snakemake(name, *profile, "--dry-run", "--", "all")
        if "Nothing to be done" not in planned:
            sys.exit(f"the study is not finished:\n{planned}")
        job = next(path for path in outputs if path.name == "summary.json")
        _, one = snakemake(name, *profile, "--dry-run", "--", str(job.relative_to(folder)))
        return {"files": len(outputs), "plan": whole, "one job": one}


def main() -> None:
    parser = parser_of(__doc__)
    for name, default in (("methods", 20), ("seeds", 64), ("benchmarks", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["new", "finished"], help="only studies without, or with, all results")
    parser.add_argument("--profile", help="Snakemake profile (default: jobs run on this machine)")
    arguments = parser.parse_args()
    size = {name: vars(arguments)[name] for name in ("methods", "seeds", "benchmarks")}
    profile = ["--profile", arguments.profile] if arguments.profile else []
    report = {
        **provenance(),
        **size,
        "profile": arguments.profile,
        **({} if arguments.only == "finished" else {"nothing is there": measure(study(**size), *profile)}),
        **({} if arguments.only == "new" else {"finished": measure_finished(study(**size), *profile)}),
    }
    print(json.dumps(report, indent=1))
    save(report, arguments.out)


if __name__ == "__main__":
    main()
