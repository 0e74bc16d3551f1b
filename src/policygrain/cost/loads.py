"""Tokens → loads → seconds and bytes. Pure functions; every formula says where it is from.

A phase's time is linear: calls × seconds a call + arithmetic / rate + bytes read / bandwidth. On a real device they
overlap (a roofline takes the larger), so the sum errs on the long side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .shapes import Shape

# Up to this vocabulary the output layer makes all logits at once, beyond it blocks of tokens × vocabulary.
PLAIN_VOCABULARY = 4096
BLOCK = (4096, 8192)


@dataclass(frozen=True)
class Load:
    """What a device is asked to do."""

    calls: float = 0.0  # forward passes, decoding steps, answers: whatever has a price of its own
    flops: float = 0.0
    bytes: float = 0.0  # read from memory, where that is what takes long

    def __add__(self, other: Load) -> Load:
        return Load(self.calls + other.calls, self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Load:
        return Load(self.calls * times, self.flops * times, self.bytes * times)


@dataclass(frozen=True)
class Speed:
    """How fast a device does one kind of thing; null where that is too fast to count."""

    call: float = 0.0  # seconds
    rate: float | None = None  # FLOP/s
    bandwidth: float | None = None  # bytes/s

    def seconds(self, load: Load) -> float:
        """How long ``load`` takes."""
        arithmetic = load.flops / self.rate if self.rate else 0.0
        reading = load.bytes / self.bandwidth if self.bandwidth else 0.0
        return load.calls * self.call + arithmetic + reading


def attention_flops(shape: Shape, context: float) -> float:
    """Forward FLOPs of one token's attention over ``context`` tokens: two products, QKᵀ and AV, in every layer.

    4 · layers · query width · context (Narayanan et al., arXiv 2104.04473, without the projections, which are in 2N).
    """
    return 4.0 * shape.layers * shape.queries * context


def forward_flops(shape: Shape, prompts: float, prompt: float, responses: float, response: float) -> float:
    """FLOPs to read ``prompts`` prompts of ``prompt`` tokens, each once, and ``responses`` responses to them.

    2N a token (Kaplan et al., arXiv 2001.08361) and attention, causal: half of one's own text, all of one's prompt.
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
    """``steps`` optimizer steps that share the responses: 6N a token, 8N where activations are computed again.

    Prompts are read once a step whose responses continue them; groups stay together, so once in all.
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
    """Sampling, ``sequences`` at a time, numbers of ``width`` bytes. A call is one step: a token for every sequence.

    Each step reads all weights, each token the keys and values before it (Pope et al., arXiv 2211.05102). There are as
    many steps as the ``longest`` response has tokens, more where not all sequences fit at once.
    """
    tokens = responses * response
    steps = max(longest, tokens / sequences) if responses else 0.0
    cache = tokens * shape.kv_per_token * width * (prompt + response / 2)
    flops = forward_flops(shape, prompts, prompt, responses, response)
    return Load(steps, flops, steps * shape.parameters * width + cache)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by what they are for."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float  # layers that are whole for their pass, of a sharded model
    activations: float
    output_layer: float
    reference: float
    engine_weights: float
    engine_cache: float

    @property
    def engine(self) -> float:
        """Of the rollout engine."""
        return self.engine_weights + self.engine_cache

    @property
    def total(self) -> float:
        """The peak, trainer and engine side by side: in an update, or while the start policy reads the batch."""
        update = self.gradients + self.activations + self.output_layer
        return self.weights + self.optimizer + self.gathered + max(update, self.reference) + self.engine


def activation_bytes(shape: Shape, tokens: float, width: int, checkpointing: bool) -> float:
    """What a micro-batch's forward pass keeps for its backward pass; attention's scores are always computed again.

    Per layer and token, in numbers of ``width`` bytes: inputs and outputs of both norms 4h, q and attention's output
    2q, k and v 2k, the gated feed-forward's four intermediates 4i. With checkpointing h a layer, and one layer in full
    while it is computed again (after Korthikanti et al., arXiv 2205.05198, for this architecture).
    """
    layer = 4 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 4 * shape.intermediate
    per_token = shape.layers * shape.hidden + layer if checkpointing else shape.layers * layer
    return float(tokens * per_token * width)


def output_layer_bytes(shape: Shape, tokens: float) -> float:
    """Logits, their log-softmax and its gradient, float32: of ``tokens`` for a small vocabulary, else of one block.

    Blocks go by one after the other, and beside them stays the gradient of the output layer, float32.
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
    """On each of ``devices`` that train a run together, weights of ``width`` bytes a number, arithmetic in ``compute``.

    ``sharded``: they share weights, gradients and AdamW's two moments (ZeRO-3, arXiv 1910.02054), and hold two layers
    and the embeddings whole at a time; the start policy is then in the host's memory. The engine is whole on every
    device, with ``sequences`` of ``context`` tokens each at once.
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
