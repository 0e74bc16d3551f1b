"""Decoding with small overhead: a key-value cache that is written in place, and the steps of a small model.

transformers' DynamicCache concatenates all keys and values for each new token, which takes longer than a small model's
forward pass; with its StaticCache every token attends over the full length. For a model of a hundred thousand
parameters the module calls take longer than the arithmetic, too. `SmallDecoder` is the same arithmetic on the same
weights for Qwen2 and Llama; a test compares the two. Larger models and other architectures use transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = 10_000_000  # parameters; up to about this size the overhead of module calls matters


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
        """Keep the rows with these indices, in this order.

        An index may be missing (a finished response) or repeated (a prompt with several responses).
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


class _Weights(NamedTuple):
    """Weights of a layer, with projections of the same input concatenated."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    second_norm: Tensor
    gate_up: Tensor
    down: Tensor


class SmallDecoder:
    """Next-token logits of a Qwen2 or Llama model, whose weights it copies: they must not change while it is used."""

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        decoder: Any = model.base_model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps, self.size = config.rms_norm_eps, decoder.layers[0].self_attn.head_dim
        self.embed, self.final = decoder.embed_tokens.weight, decoder.norm.weight
        self.unembed: Tensor = model.get_output_embeddings().weight
        positions = torch.arange(config.max_position_embeddings, device=self.embed.device).unsqueeze(0)
        cos, sin = decoder.rotary_emb(self.embed, positions)
        self.cos, self.sin = cos[0], sin[0]  # [positions, size]
        self.sin[:, : self.size // 2].neg_()  # so that a rotation only exchanges the halves of a vector
        self.layers = [self._weights(layer) for layer in decoder.layers]

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether ``model`` has a supported architecture and is small enough for this to be faster."""
        config: Any = model.config
        return (
            config.model_type in ("qwen2", "llama")
            and config.hidden_act == "silu"
            and not getattr(config, "use_sliding_window", False)
            and not getattr(config, "attention_dropout", 0.0)
            and not getattr(config, "attention_bias", False)  # Llama's is one of the output, too
            and not getattr(config, "mlp_bias", False)
            and model.num_parameters() <= SMALL
        )

    @staticmethod
    def _weights(layer: Any) -> _Weights:
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        biases = [p.bias for p in projections]
        return _Weights(
            norm=layer.input_layernorm.weight,
            qkv=torch.cat([p.weight for p in projections]),
            qkv_bias=None if biases[0] is None else torch.cat(biases),
            out=attention.o_proj.weight,
            second_norm=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            down=mlp.down_proj.weight,
        )

    def __call__(self, ids: Tensor, position: Tensor, attention: Tensor, cache: InPlaceCache) -> Tensor:
        """Next-token logits [rows, vocabulary] after tokens ``ids`` [rows] at ``position`` [rows].

        ``attention`` [rows, used + 1] is the attention mask over the cache, to which the new tokens are appended.
        """
        x = self.embed[ids]
        cos, sin = self.cos[position].unsqueeze(1), self.sin[position].unsqueeze(1)
        mask = torch.where(attention[:, None, None, :], 0.0, -torch.inf).to(x.dtype)
        rotated = self.heads + self.kv_heads
        for layer, cached in zip(self.layers, cache.layers, strict=True):
            assert isinstance(cached, InPlaceLayer)
            h = F.rms_norm(x, x.shape[-1:], layer.norm, self.eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).unflatten(1, (-1, self.size))
            qk = qkv[:, :rotated]
            qk = torch.addcmul(qk * cos, qk.roll(self.size // 2, -1), sin)
            keys, values = cached.update(qk[:, self.heads :].unsqueeze(2), qkv[:, rotated:].unsqueeze(2))
            q = qk[:, : self.heads].unsqueeze(2)
            out = F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=self.heads != self.kv_heads)
            x = x + F.linear(out.flatten(1), layer.out)
            h = F.rms_norm(x, x.shape[-1:], layer.second_norm, self.eps)
            gate, up = F.linear(h, layer.gate_up).chunk(2, 1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(F.rms_norm(x, x.shape[-1:], self.final, self.eps), self.unembed).float()
