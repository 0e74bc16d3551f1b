"""A key-value cache that is written in place and can forget rows.

transformers' DynamicCache concatenates all keys and values at each new token, which for a small model costs more than
the model; its StaticCache makes every token attend over the full length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class InPlaceLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers of a fixed length; what is returned are views of the used part."""

    is_sliding = False

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.used = length, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the buffers, now that their shape is known."""
        self.keys: Tensor
        self.values: Tensor
        shape = (*key_states.shape[:2], self.length, key_states.shape[3])
        self.keys, self.values = key_states.new_empty(shape), value_states.new_empty(shape)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values behind those in use; views of all in use [rows, heads, used, size]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[2]
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a query of this length sees, and where they begin."""
        return self.used + int(query_length), 0

    def get_seq_length(self) -> int:
        """Tokens in use."""
        return self.used

    def get_max_length(self) -> int:
        """Tokens that there is room for."""
        return self.length


class InPlaceCache(Cache):
    """The cache of all layers, for at most ``length`` tokens a row."""

    def __init__(self, layers: int, length: int) -> None:
        super().__init__(layers=[InPlaceLayer(length) for _ in range(layers)])

    def take(self, rows: Tensor) -> None:
        """These rows, in this order, a row as often as it is named: forgets finished ones, fans a prompt out."""
        for layer in self.layers:
            assert isinstance(layer, InPlaceLayer)
            layer.keys, layer.values = (self._take(layer, buffer, rows) for buffer in (layer.keys, layer.values))

    @staticmethod
    def _take(layer: InPlaceLayer, buffer: Tensor, rows: Tensor) -> Tensor:
        # Only the part in use is copied.
        taken = buffer.new_empty((len(rows), *buffer.shape[1:]))
        torch.index_select(buffer[:, :, : layer.used], 0, rows, out=taken[:, :, : layer.used])
        return taken
