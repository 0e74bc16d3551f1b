"""Rollouts written in training with TRL, and by verl's losses: what was trained on, and nothing changes."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain import method
from policygrain.objective.terms import Grpo
from policygrain_lab.rollouts.anatomy import measure
from policygrain_lab.rollouts.coefficients import Work
from policygrain_lab.rollouts.dump import dump_trl
from policygrain_lab.rollouts.files import group_advantages, read_rollouts
from tests.support.batches import random_fields

ROOT = Path(__file__).parents[2]


def train(start: str, folder: Path, dump: Path | None = None, **settings: Any) -> Any:
    """The trainer after its steps: TRL's own without an `objective`."""
    pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions of vLLM, which plays no part here
        import trl
        from transformers import PrinterCallback

        from policygrain.integrations.trl import PolicyGrainTrainer
        from tests.support.trl import trainer_of

    kind = PolicyGrainTrainer if "objective" in settings else trl.GRPOTrainer
    trainer = trainer_of(kind, start, folder, **settings)
    trainer.remove_callback(PrinterCallback)
    if dump:
        dump_trl(trainer, dump, first_step=1)
    trainer.train()
    return trainer


def weights(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.trl
@pytest.mark.filterwarnings("ignore:.*sampler:UserWarning")
def test_the_rollouts_that_are_written_are_those_that_were_trained_on(start, tmp_path):
    """From the file alone follows the loss of each step, TEPO's measured mask included; writing changes no weight.

    They begin with whole batches of rollouts, of which each response is trained on twice: steps 4 and 5, 6 and 7.
    """
    shared = {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 8}
    plain = train(start, tmp_path, objective="tepo", **shared)
    trainer = train(start, tmp_path, objective="tepo", dump=tmp_path / "rollouts", **shared)
    assert torch.equal(weights(trainer), weights(plain))
    rollouts = read_rollouts(tmp_path / "rollouts")
    steps, staleness = (rollouts.responses[name] for name in ("step", "staleness"))
    assert steps.tolist() == [float(step) for step in range(4, 8) for _ in range(8)]
    assert staleness.tolist() == [float(step - 4) for step in range(4, 8) for _ in range(8)]
    logged = [row for row in trainer.state.log_history if "loss" in row]
    for step in range(4, 8):
        batch = rollouts.rows((steps == step).nonzero().squeeze(1))
        metrics = method("tepo").loss(batch).metrics
        for name in ("loss", "mask_share", "kl_old"):
            assert metrics[name] == pytest.approx(logged[step][f"policygrain/{name}"], rel=1e-3, abs=2e-6), (step, name)
    groups, rewards = rollouts.responses["group"], rollouts.responses["reward"]
    assert (groups.bincount() == 4).all()
    by_row = torch.stack([row[0] for row in rollouts.batch.advantages])
    own = group_advantages(Grpo(), rewards, groups)
    torch.testing.assert_close(own, by_row, rtol=0.02, atol=1e-5)  # TRL adds 1e-4 to the standard deviation
    assert "gepo" in measure(Work(rollouts)).names


def test_verls_own_losses_write_their_rollouts_where_a_folder_is_named(tmp_path):
    """Loss and gradient stay; the file has what the loss was called with."""
    pytest.importorskip("verl", reason="verl is not installed (make test-peers)")
    code = (
        "import torch, verl; from verl.trainer.ppo.core_algos import get_policy_loss_fn as get\n"
        "from tests.integrations.test_verl import config_of, random_fields\n"
        "fields = random_fields([3, 2], 0, 0.3); mask = fields['mask'].bool()\n"
        "fields |= {name: fields[name].clamp(max=0) for name in ('log_probs', 'old_log_probs')}\n"
        "a = fields['advantages'].unsqueeze(1).expand_as(mask)\n"
        "print(float(get('vanilla')(old_log_prob=fields['old_log_probs'], log_prob=fields['log_probs'], advantages=a,"
        " response_mask=mask, loss_agg_mode='token-mean', config=config_of('vanilla'))[0]))"
    )
    printed = []
    for environment in ({}, {"POLICYGRAIN_DUMP": str(tmp_path / "rollouts")}):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
            env=os.environ | environment,
        )  # fmt: skip
        printed.append(done.stdout.split()[-1])
    assert printed[0] == printed[1]
    batch, fields = read_rollouts(tmp_path / "rollouts").batch, random_fields([3, 2], 0, 0.3)
    mask = fields["mask"].bool()
    assert batch.mask.tolist() == mask.tolist()
    for name in ("log_probs", "old_log_probs"):
        expected = fields[name].clamp(max=0).where(mask, 0.0).double()
        torch.testing.assert_close(getattr(batch, name), expected, rtol=0, atol=1e-6)
