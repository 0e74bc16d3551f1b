"""Prompts and responses as padded tensors; responses of one group share the row of their prompt.

They stay on the host: rows are selected and packed there, so that no length has to be read back from a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Sequences(NamedTuple):
    """Responses and their prompts.

    The responses of a group have the same prompt. It is stored and processed once, not once per response: with short
    responses that saves half of the computation.
    """

    prompts: Tensor  # [prompts, prompt tokens], padded on the left
    prompt_mask: Tensor  # [prompts, prompt tokens], bool
    prompt_of: Tensor  # [batch]: row of `prompts`
    ids: Tensor  # [batch, tokens], padded on the right
    mask: Tensor  # [batch, tokens], bool

    def rows(self, index: Tensor | slice) -> Sequences:
        """The responses at ``index`` and their prompts, without columns that are padding in all of them."""
        used, prompt_of = self.prompt_of[index].unique(return_inverse=True)
        prompt_mask, mask = self.prompt_mask[used], self.mask[index]
        first = int(prompt_mask.any(0).to(torch.uint8).argmax())
        width = max(1, int(mask.any(0).sum()))
        return Sequences(
            self.prompts[used, first:],
            prompt_mask[:, first:],
            prompt_of,
            self.ids[index, :width],
            mask[:, :width],
        )


def pack(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_id: int) -> Sequences:
    """Sequences from one prompt and one response per row, as token ids; equal prompts are stored once."""
    number = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    p, r = max(map(len, number)), max(1, *map(len, responses))
    prompt_ids, ids = torch.full((len(number), p), pad_id), torch.full((len(responses), r), pad_id)
    for prompt, row in number.items():
        prompt_ids[row, p - len(prompt) :] = torch.tensor(prompt)
    for row, response in enumerate(responses):
        ids[row, : len(response)] = torch.tensor(response)
    prompt_mask = torch.arange(p) >= p - torch.tensor([len(prompt) for prompt in number]).unsqueeze(1)
    mask = torch.arange(r) < torch.tensor([len(response) for response in responses]).unsqueeze(1)
    prompt_of = torch.tensor([number[tuple(prompt)] for prompt in prompts])
    return Sequences(prompt_ids, prompt_mask, prompt_of, ids, mask)


def micro_batches(sequences: Sequences, token_budget: int) -> list[Tensor]:
    """Row indices of each micro-batch: whole groups, at most ``token_budget`` prompt and response tokens each.

    A group that is larger is divided, and its prompt is in each part; a row that is larger is a micro-batch by itself.
    """
    lengths, prompts = sequences.mask.sum(1).tolist(), sequences.prompt_mask.sum(1).tolist()
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(sequences.prompt_of.tolist()):
        groups.setdefault(prompt, []).append(row)
    batches: list[list[int]] = [[]]
    total = 0
    for prompt, rows in groups.items():
        if batches[-1] and total + prompts[prompt] + sum(lengths[row] for row in rows) > token_budget:
            batches.append([])
            total = 0
        total += prompts[prompt]
        for row in rows:
            if batches[-1] and total + lengths[row] > token_budget:
                batches.append([])
                total = prompts[prompt]
            total += lengths[row]
            batches[-1].append(row)
    return [torch.tensor(rows) for rows in batches]


def position_ids(attention: Tensor) -> Tensor:
    """Position ids [batch, tokens] counted from the first token that is not padding."""
    return (attention.long().cumsum(1) - 1).clamp(min=0)


def segment_ids(sequences: Sequences, tokenizer: PreTrainedTokenizerBase, ends: Sequence[str]) -> Tensor:
    """The number of each response token's segment, from 0. A token with one of ``ends`` in it ends its segment.

    [batch, tokens], integers; numbers on padding have no meaning.
    """
    known, index = sequences.ids.unique(return_inverse=True)
    texts = [tokenizer.decode([token]) for token in known.tolist()]
    is_end = torch.tensor([any(end in text for end in ends) for text in texts], device=index.device)[index]
    is_end &= sequences.mask
    return is_end.cumsum(1) - is_end.long()
