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
from ..support.ledger import nothing_withdrawn  # noqa: F401 (a fixture)


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


@pytest.mark.usefixtures("nothing_withdrawn")
def test_what_is_behind_a_claim(tmp_path: Path) -> None:
    """Its comparisons in words, each with the records of its instrument."""
    path = laptop(tmp_path).folder.path
    draw("claims", StudyResults(path))
    table = path / "tables" / "claims.csv"
    claim = explain(table, "mpo_ratio_variance")
    assert re.search(
        r"estimators, ratio variance: block_unclipped below block_joint: 0 \[0, 0\] log2 ratio over 8 start models, "
        r"margin 1: no difference larger than the margin \(corrected p 0\)\n  records  .*estimators/seed\*\.json",
        claim,
    )
    claim = explain(table, "tepo_best_average")
    assert re.search(r"full runs, accuracy: tepo\+updates_per_batch=16 above .* over 8 training seeds", claim)
    assert re.search(r"records  .*runs/\{tepo,grpo\}/seed\*/metrics\.jsonl", claim)
    assert "full runs, area under the learning curve by samples: tepo above grpo" in claim
    entropy = explain(table, "tepo_no_entropy")
    assert "one round, reward: tepo above tepo_full_kl" in entropy and "rounds/seed*.json" in entropy
