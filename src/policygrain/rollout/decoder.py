"""A decoding step of a small Qwen2 or Llama model, without the module calls of transformers.

For a model of a hundred thousand parameters the module calls take longer than the arithmetic. This is the same
arithmetic on the same weights; a test compares the two. Larger models and other architectures use transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .kv_cache import InPlaceCache, InPlaceLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = 10_000_000  # parameters; up to about this size the overhead of module calls matters


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
    """Next-token logits of a Qwen2 or Llama model. Holds copies of its weights, so they must not change meanwhile."""

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
        self.sin[:, : self.size // 2].neg_()  # so that a vector's halves only change places in a rotation
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
