"""`policygrain claim` on the command line: a text, JSON, a figure, and errors without a traceback."""

import json
from pathlib import Path

import pytest

from policygrain.cli import main

from ..support.files import write_lines
from . import CASES

CLAIM = ["claim", "--a", "a_*.jsonl", "--b", "b_*.jsonl", "--metric", "reward"]


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, level in (("a", 0.6), ("b", 0.5)):
        for seed in range(3):
            rows = [{"step": k, "reward": level + seed / 50 + k / 100 + (k * seed % 3) / 200} for k in range(1, 6)]
            write_lines(Path(f"{side}_seed{seed}.jsonl"), rows)
    Path("binary.jsonl").write_bytes(b"\x89PNG\xff")


def test_text_json_and_figure(capsys):
    margin = [*CLAIM, "--margin", "0.2", "--last", "2"]
    assert main([*margin, "--figure", "claim.png"]) == 0
    out = capsys.readouterr().out
    assert "reward of a is above that of b: holds, smaller than 0.2" in out and "mean of the last 2 values" in out
    assert Path("claim.png").read_bytes().startswith(b"\x89PNG")
    assert main([*margin, "--json", "--unpaired", "--claimed", "below"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["pairing"] == "unpaired, as asked" and data["verdict"] == "opposite"
    assert data["difference"]["mean"] == pytest.approx(0.1) and len(data["runs"]["a"]) == 3


@pytest.mark.parametrize(("options", "says"), CASES["claims"])
def test_a_mistake_is_one_line(options, says, capsys):
    """Before any verdict is printed."""
    assert main([*CLAIM, *options]) == 2
    printed, error = capsys.readouterr()
    assert not printed and says in error and error.count("\n") == 1
