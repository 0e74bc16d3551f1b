"""A key-value cache that is written in place and whose rows can be selected.

transformers' DynamicCache concatenates all keys and values for each new token, which takes longer than a small model's
forward pass; with its StaticCache every token attends over the full length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class InPlaceLayer(CacheLayerMixin):
    """Keys and values of one layer in buffers of fixed length; `update` returns views of the part in use."""

    is_sliding = False

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.used = length, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, once their shape is known."""
        self.keys: Tensor
        self.values: Tensor
        shape = (*key_states.shape[:2], self.length, key_states.shape[3])
        self.keys, self.values = key_states.new_empty(shape), value_states.new_empty(shape)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values; returns views of all in use, [rows, heads, used, size]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.used + key_states.shape[2]
        self.keys[:, :, self.used : end] = key_states
        self.values[:, :, self.used : end] = value_states
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys for a query of this length, and the index of the first one."""
        return self.used + int(query_length), 0

    def get_seq_length(self) -> int:
        """Tokens in the cache."""
        return self.used

    def get_max_length(self) -> int:
        """Tokens that fit into the cache."""
        return self.length


class InPlaceCache(Cache):
    """The cache of all layers, for at most ``length`` tokens per row."""

    def __init__(self, layers: int, length: int) -> None:
        super().__init__(layers=[InPlaceLayer(length) for _ in range(layers)])

    def select_rows(self, rows: Tensor) -> None:
        """Keep the rows with these indices, in this order; an index may be missing (a finished response) or repeated
        (a prompt with several responses).
        """
        for layer in self.layers:
            assert isinstance(layer, InPlaceLayer)
            layer.keys, layer.values = (self._select(layer, buffer, rows) for buffer in (layer.keys, layer.values))

    @staticmethod
    def _select(layer: InPlaceLayer, buffer: Tensor, rows: Tensor) -> Tensor:
        # Only the part in use is copied.
        selected = buffer.new_empty((len(rows), *buffer.shape[1:]))
        torch.index_select(buffer[:, :, : layer.used], 0, rows, out=selected[:, :, : layer.used])
        return selected
