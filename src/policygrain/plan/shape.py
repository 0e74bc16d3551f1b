"""Shapes of models, which determine parameters, arithmetic and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..hub import cached_config, read_config
from ..study.schema import Model
from ..tasks.characters import CHARACTERS


@dataclass(frozen=True)
class Shape:
    """A decoder of the Qwen2 kind: grouped-query attention with biases on q, k, v; gated feed-forward; RMS norms."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool  # the output layer is the embedding
    head_size: int = 0  # 0: hidden / heads

    @property
    def queries(self) -> int:
        """Total width of the query heads."""
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def keys(self) -> int:
        """Total width of the key heads, and of the value heads."""
        return self.kv_heads * (self.head_size or self.hidden // self.heads)

    @property
    def embeddings(self) -> int:
        """Parameters of the embedding, and of the output layer if it is not tied."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Number of parameters: embeddings, layers, norms."""
        attention = 2 * self.hidden * self.queries + self.queries + 2 * (self.hidden + 1) * self.keys
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + self.embeddings

    @property
    def multiplied(self) -> int:
        """N in 2N and 6N FLOPs per token: the parameters without an embedding that is only looked up."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def kv_per_token(self) -> int:
        """Numbers per token in the key-value cache."""
        return 2 * self.layers * self.keys


def shape_of(model: Model, known: Mapping[str, Mapping[str, Any]]) -> Shape:
    """The shape of the initial model: a tiny model, a folder, a name in ``known``, or a model in the hub's local cache.

    UserError if it is none of these.
    """
    if model.start == "tiny":
        tiny, words = model.tiny, model.tiny.vocabulary or len(CHARACTERS)
        return Shape(tiny.hidden, tiny.intermediate, tiny.layers, tiny.heads, tiny.heads, words, tied=True)
    if model.start in known and not Path(model.start).is_dir():
        return Shape(**known[model.start])
    if (path := cached_config(model.start, model.revision)) is None:
        raise UserError(
            f"model.start: the shape of {model.start!r} is not known here. Name a folder with its config.json, or add "
            "it under `shapes` in a file for --constants."
        )
    config = read_config(path)
    try:
        return Shape(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config.get("num_key_value_heads", config["num_attention_heads"]),
            config["vocab_size"],
            bool(config.get("tie_word_embeddings", False)),
            config.get("head_dim") or 0,
        )
    except KeyError as error:
        raise UserError(f"{path}: the key {error} is missing; estimates are made for decoders like Qwen2.") from error
