"""Planning a large study takes little memory; `benchmarks/dry_run.py` measures how long it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_twenty_methods_ten_seeds_eight_benchmarks_are_planned_as_few_jobs_or_many(root: Path) -> None:
    command = [sys.executable, str(root / "benchmarks" / "dry_run.py"), "--only", "new"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    few, many = (json.loads(done.stdout)[name] for name in ("few jobs", "many jobs"))
    # 200 models on eight benchmarks are ten jobs: one engine evaluates many models.
    assert few["by_rule"]["train"] == 200 and few["by_rule"]["evaluate"] == 10 and few["jobs"] < 300
    # Or 1,800, with one engine per model and eight jobs that sample its responses.
    assert many["by_rule"]["evaluate_part"] == 1600 and many["jobs"] > 2000
    assert max(few["peak_mb"], many["peak_mb"]) < 1000
