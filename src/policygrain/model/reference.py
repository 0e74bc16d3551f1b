"""The start policy, out of the way until it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .loading import device
from .sharding import is_sharded

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def on_device(reference: PreTrainedModel | None, model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """``reference`` on the device where it computes, for as long as this lasts; else it is kept in host memory.

    None: the reference is ``model`` without its adapter.
    """
    if reference is None:
        model.disable_adapters()
        yield model
        model.enable_adapters()
    elif is_sharded(reference):  # brings each layer itself
        yield reference
    else:
        # Nothing changes it, so that nothing has to go back.
        kept = [(tensor, tensor.data) for tensor in (*reference.parameters(), *reference.buffers())]
        for tensor, host in kept:
            tensor.data = host.to(device(), non_blocking=True)
        yield reference
        for tensor, host in kept:
            tensor.data = host
