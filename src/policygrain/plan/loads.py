"""From the shape of a model, and tokens, to operations and bytes; each function names the source of its formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..hub import cached_config, read_config
from ..study.schema import Model
from ..tasks.characters import CHARACTERS

# Up to this vocabulary size the output layer computes all logits at once, beyond it blocks of tokens × vocabulary.
PLAIN_VOCABULARY = 4096
BLOCK = (4096, 8192)


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


class Texts(NamedTuple):
    """``prompts`` of ``prompt`` tokens each, and ``responses`` of ``response`` tokens each."""

    prompts: float
    prompt: float
    responses: float
    response: float

    @property
    def tokens(self) -> float:
        """All tokens, those of each prompt once."""
        return self.prompts * self.prompt + self.responses * self.response


@dataclass(frozen=True)
class Load:
    """Work for a device."""

    calls: float = 0.0  # forward passes, decoding steps or graded answers, each with a fixed overhead
    flops: float = 0.0
    bytes: float = 0.0  # read from memory, in phases that memory bandwidth limits

    def __add__(self, other: Load) -> Load:
        return Load(self.calls + other.calls, self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Load:
        return Load(self.calls * times, self.flops * times, self.bytes * times)


def forward_flops(shape: Shape, texts: Texts) -> float:
    """FLOPs of a forward pass over prompts, each once, and responses.

    2N per token (Kaplan et al., arXiv 2001.08361), and causal attention, 4 · layers · query width per token and token
    of context (Narayanan et al., arXiv 2104.04473): half of the own text on average, for responses the whole prompt.
    """
    _, prompt, responses, response = texts
    context = texts.prompts * prompt * prompt / 2 + responses * response * (prompt + response / 2)
    return 2.0 * shape.multiplied * texts.tokens + 4.0 * shape.layers * shape.queries * context


def score(shape: Shape, micro: int, texts: Texts) -> Load:
    """Log-probabilities without gradient, in micro-batches of ``micro`` tokens."""
    return Load(max(1, math.ceil(texts.tokens / micro)), forward_flops(shape, texts))


def update(shape: Shape, micro: int, texts: Texts, steps: int = 1, checkpointing: bool = False) -> Load:
    """``steps`` optimizer steps among which the responses are divided: 6N per token, 8N with activation checkpointing.

    Groups are not divided among steps, so each prompt is processed once.
    """
    calls = steps * max(1, math.ceil(texts.tokens / steps / micro))
    return Load(calls, forward_flops(shape, texts) * (4 if checkpointing else 3))


def decode(shape: Shape, width: int, texts: Texts, longest: float, sequences: int) -> Load:
    """Sampling of up to ``sequences`` responses at a time, numbers of ``width`` bytes. A call is one decoding step.

    Each step reads all weights, each token the keys and values before it (Pope et al., arXiv 2211.05102). The number of
    steps is that of tokens in the ``longest`` response, or more if not all sequences fit at once.
    """
    tokens = texts.responses * texts.response
    steps = max(longest, tokens / sequences) if texts.responses else 0.0
    cache = tokens * shape.kv_per_token * width * (texts.prompt + texts.response / 2)
    return Load(steps, forward_flops(shape, texts), steps * shape.parameters * width + cache)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by use."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float  # unsharded layers during their pass, of a sharded model
    activations: float
    output_layer: float
    reference: float
    engine_weights: float
    engine_cache: float

    @property
    def total(self) -> float:
        """The peak with trainer and engine on one device: in an update, or while the start policy scores the batch."""
        update = self.gradients + self.activations + self.output_layer
        engine = self.engine_weights + self.engine_cache
        return self.weights + self.optimizer + self.gathered + max(update, self.reference) + engine


def activation_bytes(shape: Shape, tokens: float, width: int, checkpointing: bool) -> float:
    """Activations that a micro-batch's forward pass keeps for the backward pass, without attention scores.

    Numbers per layer and token, of ``width`` bytes each: inputs and outputs of both norms 4h, q and attention output
    2q, k and v 2k, the four intermediates of the gated feed-forward layer 4i. With checkpointing h per layer, and one
    layer in full while it is recomputed (after Korthikanti et al., arXiv 2205.05198, for this architecture).
    """
    layer = 4 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 4 * shape.intermediate
    return float(tokens * width * (shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer))


def output_layer_bytes(shape: Shape, tokens: float) -> float:
    """Logits, log-softmax and gradient in float32: for all ``tokens`` with a small vocabulary, else for one block.

    With blocks the gradient of the output layer is in float32 too.
    """
    if shape.vocabulary <= PLAIN_VOCABULARY:
        return 3.0 * 4 * tokens * shape.vocabulary
    block = min(tokens, BLOCK[0]) * min(shape.vocabulary, BLOCK[1])
    return 4.0 * (3 * block + shape.vocabulary * shape.hidden)


def memory(
    shape: Shape,
    *,
    width: int,
    compute: int,
    devices: int,
    sharded: bool,
    micro: float,
    sequences: float,
    context: float,
    checkpointing: bool,
) -> Memory:
    """Memory on each of the ``devices`` of a run.

    ``width`` and ``compute`` are the bytes per number of the weights and of the forward pass, ``micro`` the tokens of a
    micro-batch. The engine is unsharded on every device and samples ``sequences`` of ``context`` tokens at a time.
    ``sharded``: weights, gradients and AdamW's two moments are divided among the devices (ZeRO-3, arXiv 1910.02054);
    two layers and the embeddings are gathered at a time, and the start policy is in host memory.
    """
    weights = float(shape.parameters * width)
    share = weights / devices if sharded else weights
    layers = shape.parameters - shape.embeddings
    return Memory(
        weights=share,
        gradients=share,
        optimizer=2 * share,
        gathered=compute * (shape.embeddings + 2 * layers / shape.layers) if sharded else 0.0,
        activations=activation_bytes(shape, micro, compute, checkpointing),
        output_layer=output_layer_bytes(shape, micro),
        reference=0.0 if sharded else weights,
        engine_weights=float(shape.parameters * compute),
        engine_cache=float(sequences * context * shape.kv_per_token * compute),
    )
