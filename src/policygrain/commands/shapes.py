"""The shape of a model, and the memory that a run needs on each of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.characters import CHARACTERS
from ..errors import UserError
from ..hub import cached_config, read_config
from ..study.schema import Lora, Model, Study
from ..trainers.trl_settings import is_sharded

# Up to this vocabulary size the output layer computes all logits at once, beyond it blocks of tokens × vocabulary.
PLAIN_VOCABULARY = 4096
BLOCK = (2048, 2**20)
# Concurrent responses whose cache must fit: the batch size of transformers; of vLLM, enough to be efficient.
SEQUENCES = {"transformers": 256, "vllm": 32}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Shape:
    """A decoder like Qwen2: grouped-query attention with biases on q, k, v; gated feed-forward; RMS norms."""

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

    def adapter(self, lora: Lora) -> int:
        """Parameters of low-rank adapters on q, k, v, o, gate, up and down; other targets are not counted."""
        h, i = self.hidden, self.intermediate
        sums = {"q": h + self.queries, "k": h + self.keys, "v": h + self.keys, "o": h + self.queries}
        sums |= {"gate": h + i, "up": h + i, "down": h + i}
        return self.layers * lora.rank * sum(sums.get(target.removesuffix("_proj"), 0) for target in lora.targets)

    @property
    def multiplied(self) -> int:
        """N in 2N and 6N FLOPs per token: the parameters without an embedding that is only looked up."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)


def shape_of(model: Model, known: dict[str, dict[str, Any]]) -> Shape:
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
            f"model.start: the shape of {model.start!r} is not known here. Name a folder with its config.json, or "
            "download the model."
        )
    config = read_config(path)
    try:
        return Shape(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config.get("num_key_value_heads") or config["num_attention_heads"],
            config["vocab_size"],
            bool(config.get("tie_word_embeddings", False)),
            config.get("head_dim") or 0,
        )
    except KeyError as error:
        raise UserError(f"{path}: the key {error} is missing; estimates are made for decoders like Qwen2.") from error


def memory(shape: Shape, study: Study, prompt: float, response: float, devices: int) -> dict[str, float]:
    """Bytes on each of a run's ``devices``, by use: of the trainer in an update, and of the engine at the same time.

    Prompts have ``prompt`` tokens on average, responses ``response``. A sharded run divides weights, gradients and
    AdamW's two moments among its devices (ZeRO-3, arXiv 1910.02054); two layers and the embeddings are gathered at a
    time.
    """
    training, width = study.training, BYTES[study.model.dtype]
    compute = min(width, BYTES["bfloat16" if training.compute == "auto" else training.compute])
    sharded = is_sharded(training)
    share = devices if sharded else 1
    lora = study.model.lora
    trained = shape.adapter(lora) if lora else shape.parameters
    gathered = compute * (shape.embeddings + 2 * (shape.parameters - shape.embeddings) / shape.layers)
    # A response that is longer than the limit is a micro-batch by itself.
    micro = max(training.micro_batch_tokens, prompt + training.max_tokens)
    # Activations of a token in a layer: norms 4h, q and attention 2q, k and v 2k, feed-forward 4i. With checkpointing:
    # h of each layer, and one layer in full (after Korthikanti et al., arXiv 2205.05198, for this architecture).
    layer = 4 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 4 * shape.intermediate
    stored = shape.layers * shape.hidden + layer if training.activation_checkpointing else shape.layers * layer
    # Logits, log-softmax and gradient in float32, of all tokens or of a block, then with the layer's gradient.
    logits = 3.0 * micro * shape.vocabulary
    if shape.vocabulary > PLAIN_VOCABULARY:
        logits = 3.0 * min(micro, BLOCK[0]) * min(shape.vocabulary, BLOCK[1]) + shape.vocabulary * shape.hidden
    at_once = min(SEQUENCES[training.engine], training.prompts_per_step * training.group / devices)
    cache = at_once * (prompt + response) * 2 * shape.layers * shape.keys * compute
    return {
        "weights": (shape.parameters + (trained if lora else 0)) * width / share,
        "gradients": trained * width / share,
        "AdamW": 2 * trained * width / share,
        "gathered layers": gathered if sharded else 0.0,
        "activations": micro * compute * stored,
        "output layer": 4 * logits,
        "engine's weights": float(shape.parameters * compute),
        "engine's cache": training.kv_gib * 2.0**30 if training.kv_gib else cache,
    }
