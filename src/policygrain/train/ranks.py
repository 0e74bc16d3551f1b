"""Collective operations of a run that TRL trains with several processes; without a process group there is one rank.

Each rank does a share and all have the results. All have the same batch: how work is distributed changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def ranks() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def is_rank_0() -> bool:
    return ranks()[0] == 0


def on_rank_0(work: Callable[[], T]) -> T:
    """Call ``work`` on rank 0 only; returns its result on all ranks."""
    number, count = ranks()
    result = [work() if number == 0 else None]
    if count > 1:
        dist.broadcast_object_list(result, src=0)
    return result[0]  # type: ignore[return-value]


def map_over_ranks(work: Callable[[list[T]], list[R]], items: list[T]) -> list[R]:
    """``work(items)`` with one result per item, in order: each rank processes a contiguous part of the items."""
    number, count = ranks()
    share = items[len(items) * number // count : len(items) * (number + 1) // count]
    return gather(work(share) if share else [])


def sum_over_ranks(tensors: Iterable[Tensor]) -> None:
    if ranks()[1] > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def gather(items: list[T]) -> list[T]:
    count = ranks()[1]
    if count == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(count)]
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]
