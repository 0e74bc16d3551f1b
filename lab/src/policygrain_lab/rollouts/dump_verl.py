"""verl: its policy losses write what they are computed on to the folder that POLICYGRAIN_DUMP names.

verl imports this module by itself, as an entry point of the group `verl.plugins`, in every worker process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

import policygrain.integrations.verl  # noqa: F401  # its losses are registered, and written, too

from .dump import RolloutWriter

DUMP = "POLICYGRAIN_DUMP"


def dump_rollouts(folder: str) -> None:
    """Let all policy losses, verl's own included, write rows with advantages, without groups and steps."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    writer = RolloutWriter(folder, int(os.environ.get("RANK", "0")), processes=processes)

    def dumping(loss: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(loss)
        def wrapped(
            old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor, *args: Any, **more: Any
        ) -> Any:
            if not writer.full:
                columns = {"old_log_probs": old_log_prob, "log_probs": log_prob, "advantages": advantages}
                writer.write(response_mask, columns | {"mask": response_mask})
            return loss(old_log_prob, log_prob, advantages, response_mask, *args, **more)

        return wrapped

    for name, loss in POLICY_LOSS_REGISTRY.items():
        POLICY_LOSS_REGISTRY[name] = dumping(loss)


if named := os.environ.get(DUMP):
    dump_rollouts(named)
