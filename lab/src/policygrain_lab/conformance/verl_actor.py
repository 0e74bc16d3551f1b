"""verl: an actor that compares each of its optimizer steps with an objective, for `assert_verl`.

verl imports this module in its workers before it builds the actor (`actor_rollout_ref.model.external_lib`). The
objective is computed with a plain copy of the model, one sequence at a time, from the tokens of all ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.utils.padding import no_padding_2_padding

from policygrain.errors import UserError
from policygrain.objective.batch import TokenBatch
from policygrain.objective.method import build

from .trainer import NoGradient, Step, assert_step, joined, on_policy
from .verl import CHECK, OBJECTIVE, STEPS

# verl's name → field of TokenBatch, for columns that are read if the batch has them.
COLUMNS = {
    "response_mask": "mask",
    "old_log_probs": "old_log_probs",
    "advantages": "advantages",
    "rollout_is_weights": "rollout_weights",
    "ref_log_prob": "ref_log_probs",
}


class CheckedActor(engine_workers.ActorRolloutRefWorker.actor_worker_cls):
    """verl's training worker of the actor; an optimizer step that is not the objective's ends the run."""

    copy: Any = None  # a plain model of transformers

    def set_loss_fn(self, loss_fn: Callable[..., Any]) -> None:
        """Set ``loss_fn``, a partial of verl's `ppo_loss`."""
        self.max_length = loss_fn.keywords["config"].loss_scale_factor  # type: ignore[attr-defined]
        super().set_loss_fn(loss_fn=loss_fn)

    def train_batch(self, data: TensorDict) -> TensorDict:
        """Take one optimizer step and check it. AssertionError if it is not that of the objective."""
        group, rate = self.engine.get_data_parallel_group(), float(self.engine.optimizer.param_groups[0]["lr"])
        parts: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(parts, data, group)
        before = self._weights()
        output = super().train_batch(data)
        after = self._weights()
        if torch.distributed.get_rank() == 0:
            self._check(Step(before, after, rate, partial(self._batch, parts)))
        return output

    def _weights(self) -> list[Tensor]:
        """Copies of the whole weights, in the order of the plain model."""
        if self.model_config.lora_rank > 0:
            raise UserError("a gradient is read from all weights: leave out actor_rollout_ref.model.lora_rank.")
        if self.copy is None:
            of = self.model_config
            self.copy = AutoModelForCausalLM.from_pretrained(
                of.local_path, config=of.hf_config, dtype=torch.float32, trust_remote_code=of.trust_remote_code
            )
        weights = dict(self.engine.get_per_tensor_param()[0])
        self.copy.to(next(iter(weights.values())).device)
        return [weights[name].detach().clone() for name, _ in self.copy.named_parameters()]

    def _check(self, step: Step) -> None:
        folder = Path(os.environ[CHECK])
        objective = json.loads((folder / OBJECTIVE).read_text(encoding="utf-8"))
        seen: dict[str, Any] = {"on_policy": True}
        try:
            assert_step(self.copy, step, build(objective["name"], objective["method"]), rtol=objective["rtol"])
            seen["on_policy"] = on_policy(self.copy, step)
        except NoGradient:
            pass
        except AssertionError as error:
            seen["problem"] = str(error)
            raise
        finally:
            with (folder / STEPS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(seen) + "\n")

    def _batch(self, parts: Sequence[TensorDict]) -> TokenBatch:
        """The step of all ranks, scored by the plain model with its current weights."""
        tensors, uids = [], []
        for part in parts:
            columns = part.select(*(name for name in COLUMNS if name in part)).to_padded_tensor()
            log_probs = no_padding_2_padding(self._log_probs(part), part)
            tensors.append({"log_probs": log_probs} | {COLUMNS[k]: v.to(log_probs.device) for k, v in columns.items()})
            uids += tensordict_utils.get(part, "uid", default=[])
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
        groups = torch.tensor([numbers[uid] for uid in uids]) if uids else None
        return TokenBatch(**joined(tensors), groups=groups, max_length=self.max_length)

    def _log_probs(self, part: TensorDict) -> Tensor:
        """Log-probability of the token after each one, [all tokens of prompts and responses], as from verl's engine."""
        temperature = torch.as_tensor(part["temperature"]).expand(len(part["input_ids"]))
        rows = []
        for ids, scale in zip(part["input_ids"].to(self.copy.device).unbind(), temperature.tolist(), strict=True):
            log_probs = (self.copy(ids.unsqueeze(0)).logits[0].float() / scale).log_softmax(-1)
            rows.append(log_probs.gather(1, ids.roll(-1).unsqueeze(1)).squeeze(1))
        return torch.cat(rows)


engine_workers.ActorRolloutRefWorker.actor_worker_cls = CheckedActor
