"""Collective operations of a run with several ranks: each rank does a share of the work, all have the results.

Every rank samples the same prompts and has the same batch. Losses are normalised by the whole step, so gradients are
summed over ranks and not divided by their number; results do not depend on how work is distributed. Without a process
group there is one rank.
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
    """(rank of this process, number of ranks)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def is_rank_0() -> bool:
    """Whether this is rank 0, which writes the files of a run."""
    return ranks()[0] == 0


def on_rank_0(work: Callable[[], T]) -> T:
    """Call ``work`` on rank 0 only; returns its result on all ranks."""
    number, count = ranks()
    if count == 1:
        return work()
    result = [work() if number == 0 else None]
    dist.broadcast_object_list(result, src=0)
    return result[0]  # type: ignore[return-value]


def map_over_ranks(work: Callable[[list[T]], list[R]], items: list[T]) -> list[R]:
    """``work(items)`` with one result per item, in order: each rank processes a contiguous part of the items."""
    number, count = ranks()
    if count == 1:
        return work(items)
    share = items[len(items) * number // count : len(items) * (number + 1) // count]
    return gather(work(share) if share else [])


def balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Distribute items over ``count`` ranks: largest first, each to the rank with the smallest total so far.

    Returns a list of item indices per rank.
    """
    loads = [0] * count
    shares: list[list[int]] = [[] for _ in range(count)]
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        to = loads.index(min(loads))
        loads[to] += sizes[item]
        shares[to].append(item)
    return shares


def sum_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Add up each tensor over ranks, in place."""
    if ranks()[1] > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def sum_gradients(parameters: Iterable[Tensor], averaged: bool = False) -> None:
    """Add up the gradients of all parameters over ranks, in place. ``averaged``: FSDP has already averaged them."""
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
    """The items of all ranks in the order of ranks, on every rank."""
    count = ranks()[1]
    if count == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(count)]
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]
