"""The trained weights of an earlier moment, in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .sharding import local_part


class Snapshot:
    """A copy of the weights of ``modules`` that are trained: of a sharded model, this rank's share."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._weights = [local_part(p).detach() for module in modules for p in module.parameters() if p.requires_grad]
        self._then = [weight.to("cpu", copy=True) for weight in self._weights]

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Context in which the modules have the weights of the copy."""
        now = [weight.to("cpu", copy=True) for weight in self._weights]
        _copy(self._then, self._weights)
        try:
            yield
        finally:
            _copy(now, self._weights)


def _copy(values: list[Tensor], to: list[Tensor]) -> None:
    with torch.no_grad():
        for value, weight in zip(values, to, strict=True):
            weight.copy_(value)
