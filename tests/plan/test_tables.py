"""What `policygrain plan` prints, and the page that shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policygrain.cli import main


def test_the_page_shows_what_the_commands_print(in_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change, paste the output of the commands into the page."""
    page = Path("docs/studies.md").read_text()
    (command,) = re.findall(r"`policygrain (plan .*?--markdown)`", page, flags=re.S)
    assert main(command.split()) == 0
    assert capsys.readouterr().out in page


def test_a_plan_names_its_assumptions_and_what_does_not_fit(in_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "studies/tepo-qwen2.5-7b.yaml", "--per-run", "1"]) == 0
    shown = capsys.readouterr().out
    assert "(assumed, not measured)" in shown and shown.count("DOES NOT FIT") == 1
    assert main(["plan", "studies/tepo-qwen2.5-7b.yaml", "--json", "--gpus", "16"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["gpus"] == 16
    assert main(["plan", "config.yaml", "--device", "h1000"]) == 2
    assert "Did you mean 'h100'" in capsys.readouterr().err
