"""verl: an actor whose loss also gets the prompt of each response (docs/your-trainer.md).

verl imports this module in its workers before it builds the actor, with
`actor_rollout_ref.model.external_lib=policygrain.integrations.verl_groups`. The actor reads `uid`, verl's name of each
response's prompt, from the batch and asks all ranks once per batch for its responses and once per mini-batch for its
totals, so groups are whole however a batch is divided over mini-batches, ranks and micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers import engine_workers

from ..objective.batch import Responses
from .options import UnsupportedOption
from .verl import given_to_losses

GROUPS = "policygrain_groups"  # column of a batch: the number of each response's prompt


def all_ranks(value: Any, group: Any) -> list[Any]:
    """``value`` of each rank, in the order of ranks."""
    values: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(values, value, group)
    return values


class GroupActor(engine_workers.ActorRolloutRefWorker.actor_worker_cls):
    """verl's training worker of the actor, whose loss is also given groups, and the prompts of the step."""

    def set_loss_fn(self, loss_fn: Callable[..., Any]) -> None:
        """Set ``loss_fn``, with the groups of each micro-batch that it is called with."""

        def loss_with_groups(*, data: TensorDict, **arguments: Any) -> Any:
            if GROUPS not in data:  # a batch that is not trained on
                return loss_fn(data=data, **arguments)
            groups = data[GROUPS]
            known = {name: value.to(groups.device) for name, value in vars(self.responses).items()}
            with given_to_losses(groups=groups, responses=Responses(**known), **self.step_totals):
                return loss_fn(data=data, **arguments)

        super().set_loss_fn(loss_fn=loss_with_groups)

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        """Train on this rank's part of a batch. UnsupportedOption without `uid`."""
        if "uid" not in data:
            raise UnsupportedOption(
                "verl's batch has no `uid`, so the prompt of each response is not known; leave out "
                "actor_rollout_ref.model.external_lib=policygrain.integrations.verl_groups."
            )
        padded = data.select("response_mask", "old_log_probs").to_padded_tensor()
        mask = padded["response_mask"] != 0
        old = padded["old_log_probs"].where(mask, 0.0).sum(1)
        of_rank = (tensordict_utils.get(data, "uid"), mask.sum(1).cpu(), old.cpu())
        uids, lengths, old_log_probs = zip(*all_ranks(of_rank, self.engine.get_data_parallel_group()), strict=True)
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(uid for rank in uids for uid in rank))}
        groups = torch.tensor([numbers[uid] for rank in uids for uid in rank])
        self.responses = Responses(groups, torch.cat(lengths), torch.cat(old_log_probs))
        data[GROUPS] = torch.tensor([numbers[uid] for uid in of_rank[0]], device=mask.device)
        return super().train_mini_batch(data)

    def train_batch(self, data: TensorDict) -> TensorDict:
        """Take one optimizer step, on this rank's part of a mini-batch."""
        mask = data.select("response_mask").to_padded_tensor()["response_mask"] != 0
        whole = self.responses
        sizes = whole.sum_by_group((whole.lengths > 0).long(), data[GROUPS].cpu())
        of_ranks = all_ranks(Counter(sizes[mask.any(1).cpu()].tolist()), self.engine.get_data_parallel_group())
        # A response counts as 1/(size of its group) of a prompt, so that a group in several mini-batches counts once.
        n_groups = sum((Fraction(n, size) for counter in of_ranks for size, n in counter.items()), Fraction())
        self.step_totals = {"n_groups": int(n_groups) or 1 if n_groups.denominator == 1 else float(n_groups)}
        return super().train_batch(data)


engine_workers.ActorRolloutRefWorker.actor_worker_cls = GroupActor
