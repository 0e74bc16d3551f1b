"""`assert_step` and `assert_trl`: the gradient of a trainer's step, read from its weights."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from policygrain import TokenBatch, method
from policygrain.errors import UserError
from policygrain.integrations.conformance import random_fields
from policygrain_lab.conformance.trainer import PLAIN_SGD, Step, assert_step, assert_trl

LENGTHS = [7, 3, 9, 5]


class Table(torch.nn.Module):
    """A policy whose log-probabilities are its parameters, and one that is not trained."""

    def __init__(self, log_probs: torch.Tensor) -> None:
        super().__init__()
        self.log_probs = torch.nn.Parameter(log_probs.clone())
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)


def step_of(name: str, model: Table, fields: dict[str, Any], clip: Any = None) -> Step:
    """A step of SGD with the gradient of a preset, taken by torch."""
    chosen = method(name, **({"clip": clip} if clip else {}))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD([model.log_probs], lr=0.5)
    optimizer.zero_grad()
    chosen.loss(TokenBatch(**fields | {"log_probs": model.log_probs})).loss.backward()
    optimizer.step()
    batch = lambda: TokenBatch(**fields | {"log_probs": model.log_probs})  # noqa: E731
    return Step(before, [p.detach().clone() for p in model.parameters()], 0.5, batch)


def test_a_step_of_a_preset_passes_and_leaves_the_model_as_it_is():
    fields = random_fields(LENGTHS, 0)
    model = Table(fields["log_probs"])
    step = step_of("gspo", model, fields)
    after = copy.deepcopy(model.state_dict())
    assert_step(model, step, "gspo", rtol=1e-9)
    torch.testing.assert_close(model.state_dict(), after, rtol=0, atol=0)


def test_a_step_of_another_objective_is_found():
    fields = random_fields(LENGTHS, 0)
    model = Table(fields["log_probs"])
    step = step_of("tepo_v1", model, fields, {"low": 0.2, "high": 0.2})
    with pytest.raises(AssertionError, match=r"not that of gspo.* gspo is: ratio sequence .*seq_mean_token_mean\."):
        assert_step(model, step, "gspo")
    with pytest.raises(AssertionError, match="2 times its norm"):
        assert_step(model, step._replace(learning_rate=0.25), method("tepo_v1", clip={"low": 0.2, "high": 0.2}))
    nothing = random_fields(LENGTHS, 0) | {"advantages": torch.zeros(4, dtype=torch.float64)}
    with pytest.raises(UserError, match="its gradient and that of gspo are 0"):
        assert_step(model, step_of("gspo", model, nothing), "gspo")


# ---- TRL ------------------------------------------------------------------------------------------------------------

OF_THE_STEP: dict[str, Any] = PLAIN_SGD | {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 8,
    "max_steps": 2,
    "learning_rate": 2.0,
}


def trainer_of(start: str, out: Path, **settings: Any) -> Any:
    """A GRPOTrainer, or PolicyGrainTrainer with an ``objective``."""
    pytest.importorskip("trl", reason="TRL is not installed (pip install '.[dev]')")
    from trl import GRPOTrainer

    from policygrain.integrations.trl import PolicyGrainTrainer
    from tests.support.trl import trainer_of

    kind = PolicyGrainTrainer if "objective" in settings else GRPOTrainer
    return trainer_of(kind, start, out, **OF_THE_STEP | settings)


@pytest.mark.filterwarnings("ignore:.*sampler:UserWarning")
@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("grpo", {"loss_type": "grpo"}),
        (
            "gspo",
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
            | {"learning_rate": 2e-4},
        ),
        ("dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        ("tepo", {"objective": "tepo"}),
        ("gspo", {"objective": "gspo", "learning_rate": 2e-4}),
    ],
)
def test_a_trainer_that_has_the_objective(preset, settings, start, tmp_path):
    assert_trl(trainer_of(start, tmp_path, **settings), preset)


def test_a_trainer_that_has_another_one_is_found(start, tmp_path):
    """TRL's GSPO with its defaults is a mean over tokens (test_same_name.py)."""
    trainer = trainer_of(start, tmp_path, importance_sampling_level="sequence")
    with pytest.raises(AssertionError, match="not that of gspo: its gradient has cosine"):
        assert_trl(trainer, "gspo")


def test_settings_with_which_a_gradient_cannot_be_read_are_refused(start, tmp_path):
    with pytest.raises(UserError, match=r"set optim='sgd', max_grad_norm=0.0"):
        assert_trl(trainer_of(start, tmp_path, loss_type="grpo", optim="adamw_torch", max_grad_norm=1.0), "grpo")
    with pytest.raises(UserError, match="all ratios are 1"):
        assert_trl(trainer_of(start, tmp_path, loss_type="grpo", num_iterations=1, max_steps=1), "grpo")
