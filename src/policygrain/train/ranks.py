"""Several processes on one optimizer step: each takes a share of its micro-batches, gradients are summed.

Losses are normalised by the whole step, so sums over ranks are what one process would have: no division by the number
of ranks, and nothing hangs on how rows are dealt out. Without a process group there is one rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def ranks() -> tuple[int, int]:
    """(this process's number, how many there are)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def share(items: list[T]) -> list[T]:
    """This rank's items; some ranks may have none."""
    number, count = ranks()
    return items[number::count]


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Add up every parameter's gradient over ranks, in place."""
    if ranks()[1] == 1:
        return
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


def gather(items: list[T]) -> list[T]:
    """All ranks' items, on every rank."""
    count = ranks()[1]
    if count == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(count)]
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]
