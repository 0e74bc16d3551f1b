"""`policygrain doctor` on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_this_machine(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "policygrain.cli", "doctor", "--config", str(root / "studies" / "smoke.yaml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("memory", "disk", "torch", "study", "vllm", "data", "model", "mlflow"):
        assert f"  {what} " in done.stdout, what
