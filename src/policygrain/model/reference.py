"""The reference policy, which stays in host memory while it is not in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .device import device

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def on_device(reference: PreTrainedModel | None, model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Context in which ``reference`` is on the compute device; outside it is in host memory, after an error too.

    With ``reference=None`` the initial policy is ``model`` with its adapter disabled.
    """
    if reference is None:
        model.disable_adapters()
        try:
            yield model
        finally:
            model.enable_adapters()
    else:
        # Its weights never change, so nothing has to be copied back.
        on_host = [(tensor, tensor.data) for tensor in (*reference.parameters(), *reference.buffers())]
        try:
            for tensor, host in on_host:
                tensor.data = host.to(device(), non_blocking=True)
            yield reference
        finally:
            for tensor, host in on_host:
                tensor.data = host
