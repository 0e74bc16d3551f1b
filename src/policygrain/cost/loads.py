"""From tokens to loads, and from loads to seconds and bytes. Pure functions; each names the source of its formula.

The time of a load is linear: calls × seconds per call + FLOPs / rate + bytes read / bandwidth. On a real device
arithmetic and memory access overlap (a roofline takes the maximum), so the sum is an upper estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .shapes import Shape

# Up to this vocabulary size the output layer computes all logits at once, beyond it blocks of tokens × vocabulary.
PLAIN_VOCABULARY = 4096
BLOCK = (4096, 8192)


@dataclass(frozen=True)
class Load:
    """Work for a device: calls, floating-point operations, bytes read."""

    calls: float = 0.0  # forward passes, decoding steps or graded answers, each with a fixed overhead
    flops: float = 0.0
    bytes: float = 0.0  # read from memory, in phases that memory bandwidth limits

    def __add__(self, other: Load) -> Load:
        return Load(self.calls + other.calls, self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Load:
        return Load(self.calls * times, self.flops * times, self.bytes * times)


@dataclass(frozen=True)
class Speed:
    """The speed of a device in one phase; None: takes no time."""

    call: float = 0.0  # seconds
    rate: float | None = None  # FLOP/s
    bandwidth: float | None = None  # bytes/s

    def seconds(self, load: Load) -> float:
        """Seconds that ``load`` takes."""
        arithmetic = load.flops / self.rate if self.rate else 0.0
        reading = load.bytes / self.bandwidth if self.bandwidth else 0.0
        return load.calls * self.call + arithmetic + reading


def attention_flops(shape: Shape, context: float) -> float:
    """Forward FLOPs of one token's attention over ``context`` tokens: two products, QKᵀ and AV, in every layer.

    4 · layers · query width · context (Narayanan et al., arXiv 2104.04473, without the projections, which are in 2N).
    """
    return 4.0 * shape.layers * shape.queries * context


def forward_flops(shape: Shape, prompts: float, prompt: float, responses: float, response: float) -> float:
    """FLOPs of a forward pass over ``prompts`` prompts of ``prompt`` tokens, each once, and ``responses`` responses.

    2N per token (Kaplan et al., arXiv 2001.08361) and causal attention: over half of the own text on average, and for
    responses over the whole prompt. ``response`` is in tokens.
    """
    tokens = prompts * prompt + responses * response
    attention = prompts * prompt * attention_flops(shape, prompt / 2)
    attention += responses * response * attention_flops(shape, prompt + response / 2)
    return 2.0 * shape.multiplied * tokens + attention


def score(shape: Shape, micro: int, prompts: float, prompt: float, responses: float, response: float) -> Load:
    """Log-probabilities without gradient, in micro-batches of ``micro`` tokens."""
    tokens = prompts * prompt + responses * response
    return Load(max(1, math.ceil(tokens / micro)), forward_flops(shape, prompts, prompt, responses, response))


def update(
    shape: Shape,
    micro: int,
    prompts: float,
    prompt: float,
    responses: float,
    response: float,
    steps: int = 1,
    checkpointing: bool = False,
) -> Load:
    """``steps`` optimizer steps among which the responses are divided: 6N per token, 8N with activation checkpointing.

    Groups are not divided among steps, so each prompt is processed once.
    """
    tokens = prompts * prompt + responses * response
    forward = forward_flops(shape, prompts, prompt, responses, response)
    return Load(steps * max(1, math.ceil(tokens / steps / micro)), forward * (4 if checkpointing else 3))


def decode(
    shape: Shape,
    width: int,
    prompts: float,
    prompt: float,
    responses: float,
    response: float,
    longest: float,
    sequences: int,
) -> Load:
    """Sampling of up to ``sequences`` responses at a time, numbers of ``width`` bytes. A call is one decoding step.

    Each step reads all weights, each token the keys and values before it (Pope et al., arXiv 2211.05102). The number of
    steps is that of tokens in the ``longest`` response, or more if not all sequences fit at once.
    """
    tokens = responses * response
    steps = max(longest, tokens / sequences) if responses else 0.0
    cache = tokens * shape.kv_per_token * width * (prompt + response / 2)
    flops = forward_flops(shape, prompts, prompt, responses, response)
    return Load(steps, flops, steps * shape.parameters * width + cache)


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
    def engine(self) -> float:
        """Weights and cache of the rollout engine."""
        return self.engine_weights + self.engine_cache

    @property
    def total(self) -> float:
        """The peak with trainer and engine on one device: in an update, or while the start policy scores the batch."""
        update = self.gradients + self.activations + self.output_layer
        return self.weights + self.optimizer + self.gathered + max(update, self.reference) + self.engine


def activation_bytes(shape: Shape, tokens: float, width: int, checkpointing: bool) -> float:
    """Activations that a micro-batch's forward pass keeps for the backward pass, without attention scores.

    Numbers per layer and token, of ``width`` bytes each: inputs and outputs of both norms 4h, q and attention output
    2q, k and v 2k, the four intermediates of the gated feed-forward layer 4i. With checkpointing h per layer, and one
    layer in full while it is recomputed (after Korthikanti et al., arXiv 2205.05198, for this architecture).
    """
    layer = 4 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 4 * shape.intermediate
    per_token = shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer
    return float(tokens * per_token * width)


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
    own = weights / devices if sharded else weights
    layers = shape.parameters - shape.embeddings
    return Memory(
        weights=own,
        gradients=own,
        optimizer=2 * own,
        gathered=compute * (shape.embeddings + 2 * layers / shape.layers) if sharded else 0.0,
        activations=activation_bytes(shape, micro, compute, checkpointing),
        output_layer=output_layer_bytes(shape, micro),
        reference=0.0 if sharded else weights,
        engine_weights=float(shape.parameters * compute),
        engine_cache=float(sequences * context * shape.kv_per_token * compute),
    )
