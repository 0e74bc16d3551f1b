"""Scores of responses: their log-probabilities and entropies under a model, by one forward pass without padding.

Rollouts are packed into one row: all prompts, each once, and then all responses. Only attention depends on where a
sequence ends. The gradient of a shared prompt is the sum over the responses that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ..errors import UserError
from .attention import Spans, Varlen, packed_positions, to_device
from .device import compute_dtype, forward_precision
from .engine import Rollout
from .small import LanguageModel, SmallModel, head_size

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "policygrain_packed"  # of the attention of a packed row, in transformers
# The logits of 8,192 tokens over a vocabulary of 151,936 take 5 GB in float32, and there are several tensors of that
# size. In blocks of tokens the backward pass computes them again: four matrix products instead of three. Up to this
# vocabulary size blocks save nothing; it depends on the model alone, not on the division into micro-batches.
PLAIN_VOCABULARY = 4096
BLOCK = {"cpu": 256, "cuda": 2048}  # tokens


class TokenScores(NamedTuple):
    """Of response tokens under softmax(logits / temperature); all [rollouts, tokens], float32, 0 on padding."""

    log_probs: Tensor  # log π of each response token
    entropy: Tensor  # over the full vocabulary, in nats
    future: Tensor | None = None  # Σ_n log π_n(o_{t+n} | s_t) over prediction heads; None without them
    # Cross-entropy of the heads at temperature 1, summed over tokens; it only trains the heads. None without gradient.
    future_loss: Tensor | None = None


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward pass. The last token of a response is only predicted, so it is not in the row."""

    attention: Spans | Varlen
    lengths: Tensor  # [rollouts]: response tokens, on the host
    ids: Tensor  # [1, row]
    positions: Tensor  # [1, row]: position ids, counted from the beginning of each prompt
    predicts: Tensor  # [response tokens]: index in the row of the hidden state that predicts each one
    targets: Tensor  # [response tokens]: their ids
    places: Tensor  # [response tokens]: where each one is in the flattened tensor [rollouts, tokens]

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], place: torch.device, kind: type[Spans] | type[Varlen]) -> Packed:
        """Pack ``rollouts`` into one row on the device ``place``. All lengths stay on the host: nothing waits."""
        number = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(r.prompt) for r in rollouts))}
        prompt_of = torch.tensor([number[tuple(r.prompt)] for r in rollouts])
        prompt_lengths = torch.tensor([len(prompt) for prompt in number])
        lengths = torch.tensor([len(r.ids) for r in rollouts])
        in_row = (lengths - 1).clamp(min=0)
        prompts, prompt_valid = packed_positions(prompt_lengths, 0)
        responses, response_valid = packed_positions(in_row, int(prompt_lengths.sum()))
        step, response_step = (torch.arange(x.shape[1]) for x in (prompts, responses))
        positions = [
            step.expand_as(prompts)[prompt_valid],
            (prompt_lengths[prompt_of].unsqueeze(1) + response_step)[response_valid],
        ]
        # The first response token is predicted by the prompt's last token, each other one by the one before it.
        last = prompts.gather(1, prompt_lengths.unsqueeze(1) - 1)[prompt_of]
        mask = torch.arange(1 + responses.shape[1]) < lengths.unsqueeze(1)
        inputs = (
            torch.tensor([[*chain(*number, *(r.ids[:-1] for r in rollouts))]]),
            torch.cat(positions).unsqueeze(0),
            torch.cat([last, responses], 1)[mask],
            torch.tensor([*chain(*(r.ids for r in rollouts))]),
            mask.flatten().nonzero().squeeze(1),
        )
        return cls(kind.of(prompt_lengths, in_row, prompt_of, place), lengths, *to_device(inputs, place))

    def padded(self, values: Tensor) -> Tensor:
        shape = len(self.lengths), max(1, int(self.lengths.max()))
        return values.new_zeros(shape[0] * shape[1]).index_copy(0, self.places, values).view(shape)


def score_tokens(
    model: LanguageModel,
    rollouts: Sequence[Rollout],
    temperature: float,
    entropy_gradient: bool = True,
    heads: MTPHeads | None = None,
) -> TokenScores:
    """Score the response tokens of ``rollouts`` in one pass. UserError if the output layer is no plain linear one."""
    place, size = model.device, head_size(model.config.get_text_config())
    packed = Packed.of(rollouts, place, Varlen if Varlen.runs(place, compute_dtype(model), size) else Spans)
    with forward_precision(model):
        states, weight, bias = _states_and_output(model, packed)
    # Unlike indexing, whose backward pass sorts the indices on a GPU.
    hidden = states.index_select(0, packed.predicts)
    compute = compute_dtype(model) if hidden.is_cuda else None
    found = log_probs_and_entropy(hidden, weight, bias, packed.targets, temperature, entropy_gradient, compute)
    scores = TokenScores(*map(packed.padded, found))
    if heads is None:
        return scores
    future, loss = hidden.new_zeros(len(hidden), dtype=torch.float32), None
    for at, chosen in heads(hidden, weight, bias, packed, temperature):
        future = future.index_add(0, at, chosen)
    if torch.is_grad_enabled():
        alone = heads(hidden.detach(), weight.detach(), None if bias is None else bias.detach(), packed, 1.0)
        loss = -sum((chosen.sum() for _, chosen in alone), start=hidden.new_zeros(()))
    return scores._replace(future=packed.padded(future), future_loss=loss)


def micro_batches(rollouts: Sequence[Rollout], token_budget: int) -> list[Tensor]:
    """Indices of each micro-batch: whole groups, at most ``token_budget`` prompt and response tokens each.

    A group that is larger is divided, with its prompt in each part; a larger response is a micro-batch by itself.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, rollout in enumerate(rollouts):
        groups.setdefault(tuple(rollout.prompt), []).append(row)
    batches: list[list[int]] = [[]]
    total = 0
    for prompt, rows in groups.items():
        if batches[-1] and total + len(prompt) + sum(len(rollouts[row].ids) for row in rows) > token_budget:
            batches.append([])
            total = 0
        total += len(prompt)
        for row in rows:
            if batches[-1] and total + len(rollouts[row].ids) > token_budget:
                batches.append([])
                total = len(prompt)
            total += len(rollouts[row].ids)
            batches[-1].append(row)
    return [torch.tensor(rows) for rows in batches]


def _states_and_output(model: LanguageModel, packed: Packed) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden states [row, width], and weight and bias of the output layer."""
    if isinstance(model, SmallModel):
        states = model(packed.ids[0], packed.positions[0], lambda _, *qkv: packed.attention(*qkv))
        return states, model.unembedding, None
    with _packed(model):
        out = model.base_model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)
    unembed = model.get_output_embeddings()
    if not isinstance(unembed, nn.Linear):
        raise UserError(f"model: its output layer is a {type(unembed).__name__}; only a linear one can be trained.")
    return out.last_hidden_state[0], unembed.weight, unembed.bias


@contextmanager
def _packed(model: PreTrainedModel) -> Iterator[None]:
    """Context in which the model's layers use packed attention; they look its name up in the configuration."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _packed_attention)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,  # some architectures give it by this name
    *,
    packed: Packed,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row, [1, heads, row, size] → [1, row, heads, size]."""
    if options.get("sliding_window") is not None:
        raise UserError("model: layers of sliding-window attention cannot be trained yet.")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return packed.attention(q, k, v, options.get("scaling")).unsqueeze(0), None


def recompute_layers(model: PreTrainedModel) -> None:
    """Activation checkpointing: layers keep only their input and are recomputed in the backward pass (1/3 slower)."""

    def contexts() -> Any:
        return nullcontext(), _packed(model)  # layers are recomputed after `score_tokens` has returned

    for module in model.modules():
        if type(module).__name__ in (model._no_split_modules or ()):
            how: Any = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": contexts}
            module.forward = partial(checkpoint, module.forward, **how)


class MTPHeads(nn.Module):
    """Multi-token prediction heads n = 1..``count`` over hidden states of width ``size`` (after arXiv 2404.19737).

    Head n takes the hidden state from which the backbone predicts token t and predicts token t+n, through a small
    residual module and the backbone's own unembedding; initially as the backbone does.
    """

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(size), nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size, bias=False))
            for _ in range(count)
        )
        for head in self.heads:
            nn.init.zeros_(head[-1].weight)  # type: ignore[index]

    def forward(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed, temperature: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each head: the indices t of response tokens with t+n in the response, and log π_n(o_{t+n} | s_t)."""
        ends = packed.lengths.cumsum(0).repeat_interleave(packed.lengths)
        left = ends - 1 - torch.arange(len(ends))  # response tokens after each one
        for n, head in enumerate(self.heads, start=1):
            (at,) = to_device([(left >= n).nonzero().squeeze(1)], hidden.device)
            state = hidden[at]
            scored = state + head(state), weight, bias, packed.targets[at + n], temperature
            yield at, log_probs_and_entropy(*scored, entropy_gradient=False)[0]


def log_probs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    entropy_gradient: bool = True,
    compute: torch.dtype | None = None,
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log π of ``targets`` and the entropy over the vocabulary in nats, both [tokens] and float32.

    ``hidden`` [tokens, hidden], ``weight`` [vocabulary, hidden], ``bias`` [vocabulary], ``targets`` [tokens]. Factors
    of products are in the precision ``compute`` (None: that of ``hidden``), sums in float32; in blocks of ``block``
    tokens (None: as the vocabulary needs) results of float64 hidden states are float64.
    """
    if block is None and len(weight) <= PLAIN_VOCABULARY:
        return _of_logits(F.linear(hidden, weight, bias).float(), targets, temperature, entropy_gradient)
    of_logits, compute = _of_logits_on(hidden.device.type), compute or hidden.dtype

    def of_block(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        z = _Product.apply(hidden, weight, compute)
        return of_logits(z if bias is None else z + bias, targets, temperature, entropy_gradient)

    size = block or BLOCK.get(hidden.device.type, BLOCK["cuda"])
    recomputed = partial(checkpoint, of_block, use_reentrant=False, preserve_rng_state=False)
    parts = [recomputed(h, y) for h, y in zip(hidden.split(size), targets.split(size), strict=True)]
    chosen, entropy = (torch.cat(x) for x in zip(*parts, strict=True))
    return chosen, entropy


def _of_logits(z: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """log p of the targets and the entropy, [tokens], from logits [tokens, vocabulary]."""
    log_p = torch.log_softmax(z / temperature, dim=-1)
    if z.is_cuda:  # the compiler does not fuse the scatter that is the backward pass of a gather
        is_target = torch.arange(z.shape[1], device=z.device) == targets.unsqueeze(1)
        chosen = torch.where(is_target, log_p, 0.0).sum(-1)
    else:
        chosen = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    of_entropy = log_p if entropy_gradient else log_p.detach()
    return chosen, -(of_entropy.exp() * of_entropy).sum(-1)


@cache
def _of_logits_on(device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`_of_logits`, compiled on a GPU, where each of its operations would read and write all logits."""
    return torch.compile(_of_logits) if device == "cuda" else _of_logits


class _Product(torch.autograd.Function):
    """W h for each row h of ``hidden``, of factors in the precision ``compute``, summed in float32 at least."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, compute: torch.dtype) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.compute = compute
        return _product(hidden, weight.T, compute)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_z: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        of_hidden, of_weight, _ = ctx.needs_input_grad
        to_hidden = _product(by_z, weight, ctx.compute).to(hidden.dtype) if of_hidden else None
        to_weight = _product(by_z.T, hidden, ctx.compute).to(weight.dtype) if of_weight else None
        return to_hidden, to_weight, None


def _product(a: Tensor, b: Tensor, compute: torch.dtype) -> Tensor:
    # Tensor cores sum products of half precision in float32; elsewhere the rounded factors are cast first.
    a, b, wide = a.to(compute), b.to(compute), torch.promote_types(compute, torch.float32)
    if a.is_cuda and compute != wide:
        return torch.mm(a, b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)
