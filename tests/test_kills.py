"""Stages, and whole workflows, that are killed at random moments end with the same records.

``kills.py`` and ``workflow_kills.py`` do more of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_sixty_kills_change_no_record(root: Path) -> None:
    command = [sys.executable, "-m", "tests.kills", "--kills", "60", "--seed", "0"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" kills in ") == 5, done.stdout


@pytest.mark.disturbed
def test_a_workflow_that_is_disturbed_three_times_ends_with_the_same_records(root: Path) -> None:
    kinds = [word for kind in ("snakemake", "second", "damaged") for word in ("--kind", kind)]
    command = [sys.executable, "-m", "tests.workflow_kills", "--kills", "3", "--seed", "0", *kinds]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": the same\n" in done.stdout
