"""What the trainer provides for functions that declare what they need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from policygrain.errors import UserError

from ..support.small import small_study, train_small

OWN = """
from policygrain.objective import needs
from policygrain.objective.clip import NoClip

SEEN = []

@needs("step_log_probs", "groups", "reference")
def watched(ratio, batch):
    SEEN.append(batch)
    return NoClip()(ratio, batch)

def undeclared(ratio, batch):
    return NoClip()(ratio, batch.replace(advantages=batch.step_tensors.advantages))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "watching_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "watching_parts"


def test_a_function_that_declares_it_reads_the_step_under_the_current_policy(
    own: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    # The bonus has a gradient whatever the rewards are.
    bonus = {"name": "entropy_bonus", "coefficient": 1.0}
    study = small_study(
        methods={"mine": {"base": "grpo", "clip": f"{own}:watched", "penalties": [bonus]}},
        experiments={"headline": {"methods": ["mine"]}},
        training={"steps": 1, "learning_rate": 0.01},
    )
    train_small(study, tmp_path / "run", *made)
    # Two updates of half of the 4 · 4 responses each, in one micro-batch, whose rows are in another order.
    batches = [batch for batch in sys.modules[own].SEEN if batch.step is not None and len(batch.step_tensors.mask) == 8]
    assert len(batches) == 2
    for batch in batches:
        seen, whole = (tokens.log_probs.detach().sum(1).sort().values for tokens in (batch, batch.step_tensors))
        torch.testing.assert_close(seen, whole, rtol=1e-4, atol=1e-4)
    last = batches[-1].step_tensors
    assert (last.log_probs - last.old_log_probs).abs().max() > 1e-3  # after one update the policy has moved
    assert not torch.equal(last.entropy, last.old_entropy)
    # Two prompts of four responses each.
    assert [*last.groups.unique(return_counts=True)[1]] == [4, 4]
    assert last.responses.n_groups == 2 and batches[-1].ref_log_probs is not None


def test_a_function_that_does_not_declare_it_ends_the_run_before_it_begins(
    own: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    study = small_study(
        methods={"mine": {"base": "grpo", "clip": f"{own}:undeclared"}}, experiments={"headline": {"methods": ["mine"]}}
    )
    with pytest.raises(UserError, match=r'batch\.step_tensors: .*@needs\("step_log_probs"\)'):
        train_small(study, tmp_path / "run", *made)
    assert not (tmp_path / "run").exists()
