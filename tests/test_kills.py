"""Stages that are killed at random moments end with the same records; ``kills.py`` does more of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_sixty_kills_change_no_record(root: Path) -> None:
    command = [sys.executable, "-m", "tests.kills", "--kills", "60", "--seed", "0"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" kills in ") == 5, done.stdout
