"""One token for every row of a small decoder, without the library's module calls.

For a model of a hundred thousand parameters these calls take longer than the arithmetic. This is the same arithmetic,
on the model's own weights; a test holds the two together. Larger models and other architectures go through
transformers, where the difference is nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .kv_cache import InPlaceCache, InPlaceLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = 10_000_000  # parameters up to which calls, and not arithmetic, take the time


class _Weights(NamedTuple):
    """A layer's, with what reads the same input put together."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    second_norm: Tensor
    gate_up: Tensor
    down: Tensor


class SmallDecoder:
    """The next token's logits of a Qwen2 or Llama model whose weights do not change while it lives."""

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = model.config
        decoder: Any = model.base_model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps, self.size = config.rms_norm_eps, decoder.layers[0].self_attn.head_dim
        self.embed, self.final = decoder.embed_tokens.weight, decoder.norm.weight
        self.unembed: Tensor = model.get_output_embeddings().weight
        places = torch.arange(config.max_position_embeddings, device=self.embed.device).unsqueeze(0)
        cos, sin = decoder.rotary_emb(self.embed, places)
        self.cos, self.sin = cos[0], sin[0]  # [places, size]
        self.layers = [self._weights(layer) for layer in decoder.layers]

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether it is a model that this can stand in for, and small enough for that to be worth it."""
        config: Any = model.config
        return (
            config.model_type in ("qwen2", "llama")
            and config.hidden_act == "silu"
            and not getattr(config, "use_sliding_window", False)
            and not getattr(config, "attention_dropout", 0.0)
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

    def __call__(self, ids: Tensor, place: Tensor, attention: Tensor, cache: InPlaceCache) -> Tensor:
        """Tokens [rows] at positions ``place`` [rows] → logits [rows, vocabulary]; ``attention`` [rows, used + 1]."""
        x = self.embed[ids]
        cos, sin = self.cos[place].unsqueeze(1), self.sin[place].unsqueeze(1)
        mask = attention[:, None, None, :]
        turned = self.heads + self.kv_heads
        for layer, kept in zip(self.layers, cache.layers, strict=True):
            assert isinstance(kept, InPlaceLayer)
            h = F.rms_norm(x, x.shape[-1:], layer.norm, self.eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).unflatten(1, (-1, self.size))
            qk, half = qkv[:, :turned], self.size // 2
            qk = qk * cos + torch.cat([-qk[..., half:], qk[..., :half]], -1) * sin
            keys, values = kept.update(qk[:, self.heads :].unsqueeze(2), qkv[:, turned:].unsqueeze(2))
            q = qk[:, : self.heads].unsqueeze(2)
            seen = F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=self.heads != self.kv_heads)
            x = x + F.linear(seen.flatten(1), layer.out)
            h = F.rms_norm(x, x.shape[-1:], layer.second_norm, self.eps)
            gate, up = F.linear(h, layer.gate_up).chunk(2, 1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(F.rms_norm(x, x.shape[-1:], self.final, self.eps), self.unembed).float()
