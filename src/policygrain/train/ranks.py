"""Several processes on one run: each does a share of what a step asks, all have what came of it.

Every rank draws the same prompts and holds the same batch. Losses are normalised by the whole step, so sums over ranks
are what one process would have: no division by the number of ranks, and nothing hangs on how work is dealt out.
Without a process group there is one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def ranks() -> tuple[int, int]:
    """(this process's number, how many there are)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def is_rank_0() -> bool:
    """Whether this is the rank that writes what a run leaves behind."""
    return ranks()[0] == 0


def on_rank_0(work: Callable[[], T]) -> T:
    """What comes of ``work``, done by the first rank alone while the others wait."""
    number, count = ranks()
    if count == 1:
        return work()
    result = [work() if number == 0 else None]
    dist.broadcast_object_list(result, src=0)
    return result[0]  # type: ignore[return-value]


def map_over_ranks(work: Callable[[list[T]], list[R]], items: list[T]) -> list[R]:
    """``work(items)``, one result per item in order: each rank does some that lie together."""
    number, count = ranks()
    if count == 1:
        return work(items)
    own = items[len(items) * number // count : len(items) * (number + 1) // count]
    return gather(work(own) if own else [])


def balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Which items each of ``count`` ranks gets: the largest first, each goes to the rank that has least so far."""
    loads = [0] * count
    hands: list[list[int]] = [[] for _ in range(count)]
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        to = loads.index(min(loads))
        loads[to] += sizes[item]
        hands[to].append(item)
    return hands


def sum_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Add up each tensor over ranks, in place."""
    if ranks()[1] > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def sum_gradients(parameters: Iterable[Tensor], averaged: bool = False) -> None:
    """Add up every parameter's gradient over ranks, in place. ``averaged``: FSDP has put their mean there already."""
    count = ranks()[1]
    if count == 1:
        return
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if averaged:
                parameter.grad.mul_(count)
            else:
                dist.all_reduce(parameter.grad)


def gather(items: list[T]) -> list[T]:
    """All ranks' items, on every rank."""
    count = ranks()[1]
    if count == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(count)]
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]
