"""What is behind a number of a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.report.explain import explain


def test_what_is_behind_a_number(results: Path) -> None:
    text = explain(results / "tables" / "results.csv", "tepo,run")
    assert re.match(r"tepo, running_total: 75\.0 \[.*\] percent, 95% interval over 2 training seeds\.", text)
    assert text.count("75.00 percent of 12 problems") == 2 and "key-tepo-1" in text and "commit   c0ffee" in text
    assert "policygrain train --config" in text and "--arm tepo --seed 1" in text
    assert "key-grpo-0" in explain(results / "tables" / "ablation.csv", "grpo")
    claim = explain(results / "tables" / "claims.csv", "mpo_ratio_variance")
    assert (
        "block K=5 below block K=5, joint: -1 [-1, -1] log2 ratio over 2 training seeds, margin 1: undecided" in claim
    )
    with pytest.raises(UserError, match="column 'x' is not the name of exactly one column"):
        explain(results / "tables" / "results.csv", "tepo,x")
    with pytest.raises(UserError, match="not a table of a study"):
        explain(results / "study.yaml", "tepo,average")
