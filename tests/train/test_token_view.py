"""What a step did to each token: the record that training writes, and the page that `policygrain inspect` makes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.report.samples import write_tokens
from policygrain.results.layout import RunFolder
from policygrain.results.reader import token_view

from ..support.small import small_study, train_small

STUDY = small_study(training={"checkpoint_every": 2})  # steps with a checkpoint have a view, and the last


def test_a_step_can_be_looked_at_token_by_token(made: tuple[Path, Path], tmp_path: Path) -> None:
    run = RunFolder(train_small(STUDY, tmp_path / "tepo" / "seed0", *made, arm="tepo"))
    assert main(["inspect", str(run.path), "--step", "2"]) == 0
    page, view = run.tokens(2).with_suffix(".html").read_text(), token_view(run.tokens(2))
    assert page.count("<article") == len(view.samples) == 8 and "{{" not in page
    assert page.count("<i class") == sum(len(sample.tokens) for sample in view.samples) + 3  # and the legend
    for sample in view.samples:
        # The sequence ratio is the geometric mean of its tokens' and the same for all of them.
        mean = sum(new - old for new, old in zip(sample.log_prob, sample.log_prob_old, strict=True))
        expected = math.exp(mean / len(sample.tokens))
        assert sample.ratio == pytest.approx([expected] * len(sample.tokens), abs=1e-4)
        assert not any(sample.entropy_drop) or sample.advantage > 0
    assert any(abs(r - 1) > 1e-4 for sample in view.samples for r in sample.ratio)
    with pytest.raises(UserError, match=r"no token views of step 1\. There are: 0, 2, 3"):
        write_tokens(run, 1, None)
    with pytest.raises(UserError, match="no token views here"):
        write_tokens(RunFolder(tmp_path), None, None)
