"""Log-probabilities and entropies of responses under a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sequences(NamedTuple):
    """Prompts and responses in one rectangle: prompts padded on the left, responses on the right.

    ``ids`` and ``attention`` are [batch, prompt + tokens], ``mask`` is [batch, tokens] over the responses.
    """

    ids: Tensor
    attention: Tensor
    mask: Tensor

    def rows(self, index: Tensor | slice) -> Sequences:
        """The sequences at ``index``, without columns in which none of them has a token."""
        ids, attention, mask = self.ids[index], self.attention[index], self.mask[index]
        prompt = ids.shape[1] - mask.shape[1]
        first = int(attention[:, :prompt].any(0).to(torch.uint8).argmax()) if prompt else 0
        width = max(1, int(attention[:, prompt:].any(0).sum()))
        columns = slice(first, prompt + width)
        return Sequences(ids[:, columns], attention[:, columns], mask[:, :width])


def pack(prompts: list[list[int]], responses: list[list[int]], pad_id: int, device: torch.device) -> Sequences:
    """Token lists → Sequences."""
    p, r = max(map(len, prompts)), max(1, *map(len, responses))
    ids = torch.full((len(prompts), p + r), pad_id)
    attention = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        ids[row, p - len(prompt) : p + len(response)] = torch.tensor(prompt + response)
        attention[row, p - len(prompt) : p + len(response)] = True
    return Sequences(ids.to(device), attention.to(device), attention[:, p:].to(device))


def micro_batches(sequences: Sequences, token_budget: int) -> list[Tensor]:
    """Row indices, sorted by length and cut so that no rectangle holds more than ``token_budget`` tokens.

    A row longer than the budget is a micro-batch of its own. Rows of like length share one, so little is padding.
    """
    order = sequences.attention.sum(1).argsort(stable=True)
    prompt = sequences.ids.shape[1] - sequences.mask.shape[1]
    prompts = sequences.attention[:, :prompt].sum(1)[order].tolist()
    responses = sequences.attention[:, prompt:].sum(1)[order].tolist()
    batches, start, widest = [], 0, (0, 0)
    for row in range(len(order)):
        wider = (max(widest[0], prompts[row]), max(widest[1], responses[row]))
        if row > start and (row - start + 1) * sum(wider) > token_budget:
            batches.append(order[start:row])
            start, wider = row, (prompts[row], responses[row])
        widest = wider
    return [*batches, order[start:]]


def positions(attention: Tensor) -> Tensor:
    """Position ids that count from the first real token. [batch, tokens]."""
    return (attention.long().cumsum(1) - 1).clamp(min=0)


def log_probs_and_entropy(
    model: PreTrainedModel, sequences: Sequences, temperature: float, entropy_gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """Of each response token: log π and the full-vocabulary entropy in nats, both [batch, tokens], float32.

    Both are of the distribution sampled from, temperature included. Values on padding are meaningless.
    """
    width = sequences.mask.shape[1]
    out = model(
        input_ids=sequences.ids,
        attention_mask=sequences.attention,
        position_ids=positions(sequences.attention),
        use_cache=False,
        logits_to_keep=width + 1,
    )
    log_p = torch.log_softmax(out.logits[:, :-1].float() / temperature, dim=-1)
    chosen = log_p.gather(2, sequences.ids[:, -width:].unsqueeze(2)).squeeze(2)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy
