"""One step of PolicyGrainTrainer on two processes, and the gradient of their responses in one batch on one process."""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import gather_object

from policygrain import TokenBatch, method
from policygrain.model.loading import load_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from policygrain.integrations.trl import PolicyGrainTrainer

    from ..support.trl import PROMPTS, trainer_of

LENGTH = 10


class Kept(PolicyGrainTrainer):
    """Keeps what each process computed its loss from."""

    seen: dict[str, Any]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.seen = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
        return super()._compute_loss(model, inputs)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main(start: str, folder: Path) -> None:
    objective = method("tepo")
    before = flat(load_model(start)[0])
    sgd = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 1.0, "max_steps": 1, "num_iterations": 1}
    settings = sgd | {"per_device_train_batch_size": 4, "max_completion_length": LENGTH}
    trainer = trainer_of(Kept, start, folder, PROMPTS[:2], objective=objective, **settings)
    trainer.train()
    rank = trainer.accelerator.process_index
    after = flat(trainer.accelerator.unwrap_model(trainer.model))
    alone, _ = load_model(start)
    expected = expected_gradient(alone, objective, gather_object([trainer.seen]))
    torch.save({"weights": after, "gradient": before - after, "expected": expected}, folder / f"rank{rank}.pt")


def expected_gradient(model: Any, objective: Any, parts: list[dict[str, Any]]) -> torch.Tensor:
    """Of the mean over all responses of both processes, whose prompts have the same length."""

    def together(name: str) -> torch.Tensor:
        return torch.cat([F.pad(p[name], (0, LENGTH - p[name].shape[1])) for p in parts])

    prompts = torch.cat([p["prompt_ids"] for p in parts])
    completions, mask = together("completion_ids"), together("completion_mask")
    logits = model(torch.cat([prompts, completions], dim=1)).logits[:, prompts.shape[1] - 1 : -1]
    log_all = logits.float().log_softmax(-1)
    log_probs = log_all.gather(2, completions.unsqueeze(2)).squeeze(2)
    entropy = -(log_all.exp() * log_all).sum(-1).detach()
    advantages = torch.cat([p["advantages"] for p in parts])
    batch = TokenBatch(log_probs, log_probs.detach(), advantages, mask, entropy=entropy, old_entropy=entropy)
    objective.loss(batch).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
