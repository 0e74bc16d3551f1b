"""What is behind a number of a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.figures.catalogue import draw
from policygrain.report.explain import explain
from policygrain.results.reader import StudyResults

from ..analysis.records import laptop


def test_what_is_behind_a_number(results: Path) -> None:
    text = explain(results / "tables" / "results.csv", "tepo,run")
    assert re.match(r"tepo, running_total: 75\.0 \[.*\] percent, 95% interval over 2 training seeds\.", text)
    assert text.count("75.00 percent of 12 problems") == 2 and "key-tepo-1" in text and "commit   c0ffee" in text
    assert "policygrain train --config" in text and "--arm tepo --seed 1" in text
    assert "key-grpo-0" in explain(results / "tables" / "ablation.csv", "grpo")
    with pytest.raises(UserError, match="column 'x' is not the name of exactly one column"):
        explain(results / "tables" / "results.csv", "tepo,x")
    with pytest.raises(UserError, match="not a table of a study"):
        explain(results / "study.yaml", "tepo,average")


def test_what_is_behind_a_claim(tmp_path: Path) -> None:
    """Its comparisons in words, each with the records of its instrument."""
    path = laptop(tmp_path).folder.path
    draw("claims", StudyResults(path))
    table = path / "tables" / "claims.csv"
    claim = explain(table, "mpo_clip_fraction")
    assert re.search(
        r"estimators, clip fraction: mpo_phi_0.4 below mpo_phi_0.1: 0 \[0, 0\] points over 6 initial models: undecided "
        r"\(corrected p 1\)\n  records  .*estimators/seed\*\.json",
        claim,
    )
    claim = explain(table, "tepo_best_average")
    assert re.search(r"full runs, accuracy: tepo above grpo: 25 .* over 8 training seeds: holds", claim)
    assert re.search(r"records  .*\{tepo,grpo\}/seed", claim)
    claim = explain(table, "tepo_entropy_regularisation")
    assert "one round, reward: tepo above tepo_full_kl" in claim and "rounds/seed*.json" in claim
    assert re.search(r"records  .*runs/\{tepo,grpo\}/seed\*/metrics\.jsonl", explain(table, "tepo_stability"))
