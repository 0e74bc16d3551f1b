"""Planning a large study stays small; how quick it is, `benchmarks/dry_run.py` says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.pipeline
def test_twenty_methods_ten_seeds_eight_benchmarks_are_planned_as_few_jobs(root: Path) -> None:
    command = [sys.executable, str(root / "benchmarks" / "dry_run.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["peak_mb"] < 1000
    # 200 models on eight benchmarks are ten jobs, not 1,600: an engine judges many models.
    assert measured["by_rule"]["train"] == 200 and measured["by_rule"]["evaluate"] == 10
    assert measured["jobs"] < 300
