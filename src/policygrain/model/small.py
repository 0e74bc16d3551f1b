"""Llama and Qwen2 models of up to ten million parameters, in the files and with the weights' names of transformers.

For a model of this size the module calls of transformers take longer than the arithmetic, and its import longer than
that of all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.generation.configuration_utils import GenerationConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LanguageModel: TypeAlias = "SmallModel | PreTrainedModel"
WEIGHTS, GENERATION = "model.safetensors", "generation_config.json"


class SmallModel(nn.Module):
    """What transformers makes of ``config`` and ``weights``, whose values it shares. ValueError if they do not fit.

    A tied output layer is the embedding, and ``weights`` need not have it.
    """

    def __init__(self, config: Any, weights: Mapping[str, Tensor], generation: GenerationConfig | None = None) -> None:
        super().__init__()
        self.config, self.generation_config = config, generation or GenerationConfig.from_model_config(config)
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, head_size(config)
        parameters = {}
        for name, shape in self.shapes(config).items():
            if name not in weights or weights[name].shape != shape:
                raise ValueError(f"it has no weights {name} of the shape {list(shape)}.")
            parameters[name] = nn.Parameter(weights[name])
        parameters.setdefault("lm_head.weight", parameters["model.embed_tokens.weight"])
        for name, parameter in parameters.items():
            owner: nn.Module = self
            *path, leaf = name.split(".")
            for part in path:
                owner.add_module(part, owner._modules.get(part) or nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(leaf, parameter)
        powers = torch.arange(0, self.size, 2, device=self.device) / self.size
        frequencies = 1 / config.rope_parameters["rope_theta"] ** powers
        self.frequencies = torch.cat([-frequencies, frequencies])  # a rotation then only exchanges halves of a vector

    @staticmethod
    def fits(config: Any) -> bool:
        if config.model_type not in ("qwen2", "llama"):  # others may lack some of the keys
            return False
        special = ("use_sliding_window", "attention_dropout", "attention_bias", "mlp_bias")  # a bias of the output, too
        plain = config.hidden_act == "silu" and not any(getattr(config, name, False) for name in special)
        small = sum(torch.Size(shape).numel() for shape in SmallModel.shapes(config).values()) <= 10_000_000
        return plain and small and config.rope_parameters["rope_type"] == "default"

    @staticmethod
    def shapes(config: Any) -> dict[str, tuple[int, ...]]:
        width, wide, size = config.hidden_size, config.intermediate_size, head_size(config)
        vocabulary = (config.vocab_size, width)
        layer: dict[str, tuple[int, ...]] = {}
        for name, heads in zip("qkv", (config.num_attention_heads, *2 * [config.num_key_value_heads]), strict=True):
            layer[f"self_attn.{name}_proj.weight"] = (heads * size, width)
            if config.model_type == "qwen2":
                layer[f"self_attn.{name}_proj.bias"] = (heads * size,)
        layer["self_attn.o_proj.weight"] = (width, config.num_attention_heads * size)
        layer |= {f"mlp.{name}_proj.weight": (wide, width) for name in ("gate", "up")}
        layer["mlp.down_proj.weight"] = (width, wide)
        layer |= {f"{place}_layernorm.weight": (width,) for place in ("input", "post_attention")}
        layers = {f"model.layers.{n}.{k}": v for n in range(config.num_hidden_layers) for k, v in layer.items()}
        output = {} if config.tie_word_embeddings else {"lm_head.weight": vocabulary}
        return {"model.embed_tokens.weight": vocabulary, **layers, "model.norm.weight": (width,), **output}

    @classmethod
    def from_pretrained(cls, folder: Path, config: Any, dtype: torch.dtype) -> SmallModel:
        generation = GenerationConfig.from_pretrained(folder) if (folder / GENERATION).exists() else None
        return cls(config, load_file(folder / WEIGHTS), generation).to(dtype).eval()

    def save_pretrained(self, folder: Path) -> None:
        self.config.architectures = ["Qwen2ForCausalLM" if self.config.model_type == "qwen2" else "LlamaForCausalLM"]
        self.config.dtype = self.dtype
        self.config.save_pretrained(folder)
        self.generation_config.save_pretrained(folder)
        weights = {name: self.get_parameter(name).detach().contiguous() for name in self.shapes(self.config)}
        save_file(weights, folder / WEIGHTS, {"format": "pt"})

    @property
    def unembedding(self) -> Tensor:  # [vocabulary, width]
        return self.get_parameter("lm_head.weight")

    @property
    def device(self) -> torch.device:
        return self.unembedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unembedding.dtype

    def layers(self) -> list[tuple[Any, ...]]:
        """Weights of each layer, with projections of the same input concatenated."""
        found = []
        for layer in self.get_submodule("model.layers").children():
            of = {name.replace("_proj", "").replace(".weight", ""): x for name, x in layer.named_parameters()}
            biases: list[Tensor] = [x for name, x in of.items() if name.endswith(".bias")]
            qkv, bias = torch.cat([of[f"self_attn.{name}"] for name in "qkv"]), torch.cat(biases) if biases else None
            gate_up = torch.cat([of["mlp.gate"], of["mlp.up"]])
            norms = of["input_layernorm"], of["post_attention_layernorm"]
            found.append((*norms, qkv, bias, of["self_attn.o"], gate_up, of["mlp.down"]))
        return found

    def forward(self, ids: Tensor, positions: Tensor, attend: Callable[..., Tensor], layers: Any = None) -> Tensor:
        """Hidden states [tokens, width] of tokens ``ids`` [tokens] at ``positions`` [tokens].

        ``attend(number, q, k, v)``: attention in a layer, of [tokens, heads, size] each. ``layers``: what `layers`
        returns, unless the weights have changed since.
        """
        x = F.embedding(ids, self.get_parameter("model.embed_tokens.weight"))
        angles = positions.view(-1, 1, 1) * self.frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        rotated, width, eps = self.heads + self.kv_heads, (x.shape[1],), self.config.rms_norm_eps
        for number, layer in enumerate(layers or self.layers()):
            first_norm, second_norm, to_qkv, bias, to_out, gate_up, down = layer
            h = F.rms_norm(x, width, first_norm, eps)
            qkv = F.linear(h, to_qkv, bias).view(len(x), -1, self.size)
            qk = qkv[:, :rotated]
            qk = torch.addcmul(qk * cos, qk.roll(self.size // 2, -1), sin)
            out = attend(number, qk[:, : self.heads], qk[:, self.heads :], qkv[:, rotated:])
            x = x + F.linear(out.reshape(len(x), -1), to_out)
            h = F.rms_norm(x, width, second_norm, eps)
            gate, up = F.linear(h, gate_up).chunk(2, 1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.rms_norm(x, width, self.get_parameter("model.norm.weight"), eps)


def head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
