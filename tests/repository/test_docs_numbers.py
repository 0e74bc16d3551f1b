"""Numbers of the documentation, computed again from the published records without the code that writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arm", ["grpo", "mpo", "tepo", "grpo+updates_per_batch=1"])
def test_steps_whose_groups_were_all_dropped_count(arm: str) -> None:
    """docs/pretrained.md: accuracy of the samples of the last ten steps, by seed."""
    seeds = []
    with ZipFile(ROOT / "docs/records/smollm2.zip") as archive:
        for name in sorted(
            n for n in archive.namelist() if n.startswith(f"runs/{arm}/") and n.endswith("metrics.jsonl")
        ):
            rows = [json.loads(line) for line in archive.read(name).splitlines()]
            steps = [row["sampled_accuracy"] for row in rows if row["step"] < 40]
            assert len(steps) == 40
            seeds.append(np.mean(steps[-10:]))
    page = (ROOT / "docs/pretrained.md").read_text()
    row = re.findall(rf"^\| {re.escape(arm)} \|(.*)\|$", page, flags=re.M)[0]  # later tables are of other studies
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[1] == f"{100 * np.mean(seeds):.0f}%"
    assert cells[2] == ", ".join(f"{100 * seed:.0f}%" for seed in seeds)
