"""PolicyGrainTrainer in real training with TRL: the weights of TRL's own losses, TEPO's mask, divisions of a step."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from policygrain import TokenBatch, method
from policygrain.model.loading import load_model
from policygrain.objective import needs

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[dev]')")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about versions of vLLM, which plays no part here
    from accelerate.utils import gather_object
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.experimental.gmpo import GMPOTrainer

    from policygrain.integrations.options import UnsupportedOption
    from policygrain.integrations.trl import PolicyGrainTrainer

    from ..support.engines import save_tiny
    from ..support.trl import PROMPTS, SETTINGS, reward, trainer_of
    from . import REFUSED

pytestmark = pytest.mark.trl


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A tiny model whose responses have different lengths: the end-of-sequence token is likely from the start."""
    return save_tiny(tmp_path_factory.mktemp("start"))


def train(start: str, folder: Path, kind: Any = PolicyGrainTrainer, **settings: Any) -> Any:
    """The trainer after its steps."""
    trainer = trainer_of(kind, start, folder, **settings)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def logged(trainer: Any) -> list[dict[str, float]]:
    """Of each optimizer step."""
    return [row for row in trainer.state.log_history if "loss" in row]


LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
TIGHT = {"low": 0.01, "high": 0.02}  # some tokens are clipped after an update at this learning rate


@pytest.mark.filterwarnings("ignore:.*sampler:UserWarning")
@pytest.mark.parametrize(("name", "kind"), [("dapo", GRPOTrainer), ("gmpo", GMPOTrainer)])
def test_weights_after_training_are_those_of_trl(name, kind, start, tmp_path):
    """By AdamW, over several steps; test_parity.py has all of TRL's losses."""
    theirs = train(start, tmp_path, kind, epsilon=TIGHT["low"], epsilon_high=TIGHT["high"])
    ours = train(start, tmp_path, objective=method(name, clip=TIGHT))
    clipped = [row["policygrain/clip_fraction_high"] for row in logged(ours)]
    assert clipped[0] == clipped[2] == 0 and max(clipped) > 0, "every second step is off-policy"
    assert (weights(ours.model) - weights(load_model(start)[0])).abs().max() > 1e-3
    torch.testing.assert_close(weights(ours.model), weights(theirs.model), rtol=1e-4, atol=1e-5)


def test_it_evaluates_before_the_first_step(start, tmp_path):
    trainer = trainer_of(PolicyGrainTrainer, start, tmp_path, objective="gspo", per_device_eval_batch_size=8)
    assert trainer.evaluate(trainer.train_dataset)["eval_reward"] > 0


@pytest.mark.filterwarnings("ignore:.*sampler:UserWarning")
def test_tepos_mask_is_measured(start, tmp_path):
    """On-policy no entropy has fallen; in the second update of the same rollouts some have."""
    rows = logged(train(start, tmp_path, objective="tepo"))
    shares = [row["policygrain/mask_share"] for row in rows]
    assert shares[1] > 0.05 and shares[3] > 0.05
    assert rows[1]["policygrain/penalty"] > 0 and "policygrain/mask_signal_covariance" not in rows[1]


def test_a_batch_that_is_the_whole_step_has_its_statistics(start, tmp_path):
    """And one update per batch is said."""
    with pytest.warns(UserWarning, match="all ratios are 1.*num_iterations=2"):
        rows = logged(train(start, tmp_path, objective="clip_cov", max_steps=1, num_iterations=1))
    assert len(rows) == 1 and "policygrain/micro_batch_statistics" not in rows[0]


class WithTools(PolicyGrainTrainer):
    """Every third token is tool output, which divides a response into turns."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"]
        output["tool_mask"] = (torch.arange(mask.shape[1]) % 3 != 1).to(mask.dtype).expand_as(mask).clone()
        return output


DIVIDED: list[tuple[Any, Any]] = [
    (method("tepo", clip=TIGHT), PolicyGrainTrainer),
    (method("dr_grpo", clip=TIGHT), PolicyGrainTrainer),
    (method("turn_ratio", clip=TIGHT), WithTools),
]


@pytest.mark.filterwarnings("ignore:.*sampler:UserWarning")
@pytest.mark.parametrize(("objective", "kind"), DIVIDED, ids=["tepo", "dr_grpo", "turns"])
def test_accumulation_does_not_change_the_gradient(objective, kind, start, tmp_path):
    """One step of 8 responses in 1, 2 and 4 micro-batches. Plain SGD: the weights show the gradient itself."""
    settings = {"optim": "sgd", "max_grad_norm": 0.0, "max_steps": 2, "learning_rate": 1.0}
    settings |= {"scale_rewards": "none"} if objective.name == "dr_grpo" else {}
    found = []
    for parts in (1, 2, 4):
        division = {"per_device_train_batch_size": 8 // parts, "gradient_accumulation_steps": parts}
        trainer = train(start, tmp_path, kind, objective=objective, **division, **settings)
        found.append((weights(trainer.model), logged(trainer)))
    assert (found[0][0] - weights(load_model(start)[0])).abs().max() > 1e-3, "there is a gradient to compare"
    for other, rows in found[1:]:
        torch.testing.assert_close(other, found[0][0], rtol=1e-4, atol=1e-6)
        for row, alone in zip(rows, found[0][1], strict=True):
            ours = {key: value for key, value in row.items() if key.startswith("policygrain/")}
            assert ours == pytest.approx({key: alone[key] for key in ours}, rel=1e-3, abs=1e-5)


def test_two_processes_have_the_gradient_of_one(start, tmp_path):
    """4 responses on each of two processes: both weights are the same, and counted over both."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *LAUNCH, "tests.integrations.test_trl", start, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    assert torch.equal(found[0]["weights"], found[1]["weights"])
    for rank in found:
        torch.testing.assert_close(rank["gradient"], found[0]["expected"], rtol=1e-4, atol=1e-6)


class Kept(PolicyGrainTrainer):
    """Keeps what each process computed its loss from."""

    seen: dict[str, Any]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.seen = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
        return super()._compute_loss(model, inputs)


def step_of_a_process(start: str, folder: Path) -> None:
    """What it changes the weights by, and the gradient of the mean over all responses, whose prompts are as long."""
    length, objective, before = 10, method("tepo"), weights(load_model(start)[0])
    sgd = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 1.0, "max_steps": 1, "num_iterations": 1}
    settings = sgd | {"per_device_train_batch_size": 4, "max_completion_length": length}
    trainer = trainer_of(Kept, start, folder, PROMPTS[:2], objective=objective, **settings)
    trainer.train()
    after, parts = weights(trainer.accelerator.unwrap_model(trainer.model)), gather_object([trainer.seen])

    def together(name: str) -> torch.Tensor:
        return torch.cat([F.pad(p[name], (0, length - p[name].shape[1])) for p in parts])

    alone, _ = load_model(start)
    prompts = torch.cat([p["prompt_ids"] for p in parts])
    completions, mask = together("completion_ids"), together("completion_mask")
    logits = alone(torch.cat([prompts, completions], dim=1)).logits[:, prompts.shape[1] - 1 : -1]
    log_all = logits.float().log_softmax(-1)
    log_probs = log_all.gather(2, completions.unsqueeze(2)).squeeze(2)
    entropy = -(log_all.exp() * log_all).sum(-1).detach()
    advantages = torch.cat([p["advantages"] for p in parts])
    batch = TokenBatch(log_probs, log_probs.detach(), advantages, mask, entropy=entropy, old_entropy=entropy)
    objective.loss(batch).loss.backward()
    expected = torch.cat([p.grad.flatten() for p in alone.parameters()])
    rank = trainer.accelerator.process_index
    torch.save({"weights": after, "gradient": before - after, "expected": expected}, folder / f"rank{rank}.pt")


@needs("reference")
def against_the_initial_model(batch: TokenBatch) -> torch.Tensor:
    """A ratio to the initial model, which TRL loads for any beta above 0."""
    return batch.log_probs - batch.ref_log_probs


@pytest.mark.parametrize(("own", "settings", "says"), REFUSED["trl"], ids=[says for *_, says in REFUSED["trl"]])
def test_options_that_would_give_another_objective_are_refused(own, settings, says, tmp_path):
    """Before a model is loaded."""
    config = GRPOConfig(output_dir=str(tmp_path), **SETTINGS | settings)
    with pytest.raises(UnsupportedOption, match=says):
        changes = dict(own["objective"]) if isinstance(own["objective"], dict) else {"base": own["objective"]}
        given = own | {"objective": method(changes.pop("base"), **changes)}
        PolicyGrainTrainer(model="no/such-model", reward_funcs=reward, args=config, **given)


def test_the_default_arguments_are_checked():
    with pytest.raises(UnsupportedOption, match="scale_rewards='none'"):
        PolicyGrainTrainer(model="no/such-model", reward_funcs=reward, objective="dr_grpo")


def test_a_sampler_that_has_no_effect_is_said(tmp_path, monkeypatch):
    config = GRPOConfig(output_dir=str(tmp_path), **SETTINGS)
    monkeypatch.setattr(GRPOTrainer, "__init__", lambda *_, **__: None)
    with pytest.warns(UserWarning, match="dapo: .*dynamic: True, overlong_buffer: 0.2"):
        PolicyGrainTrainer(model="no/such-model", reward_funcs=reward, args=config, objective="dapo")


def test_the_example_of_the_page_trains(start, tmp_path, monkeypatch):
    """As it is printed, but for the model, the size of the run and the CPU."""
    page = (Path(__file__).parents[2] / "docs" / "your-trainer.md").read_text()
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "GRPOConfig(" in code]
    small = {key: value for key, value in SETTINGS.items() if key != "num_iterations"} | {"max_steps": 2}
    code = code.replace('"Qwen/Qwen2.5-0.5B-Instruct"', repr(start)).replace("GRPOConfig(", f"GRPOConfig(**{small!r}, ")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["trainer"].state.global_step == 2
    assert names["reward"](["It is 12.", "13"], ["12", "12"]) == [1.0, 0.0]


if __name__ == "__main__":
    step_of_a_process(sys.argv[1], Path(sys.argv[2]))
