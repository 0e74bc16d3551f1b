"""Multi-token prediction heads, which predict the tokens after the next one (after arXiv 2404.19737).

Head n takes the hidden state from which the backbone predicts token t and predicts token t+n, through a small residual
module and the backbone's own unembedding. MPO (2602.14386) computes the future part of its block ratio with such heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .attention import to_device
from .logprobs import log_probs_and_entropy
from .sequences import Sequences


class MTPHeads(nn.Module):
    """Heads n = 1..``count`` over hidden states of width ``size``; initially each predicts as the backbone does."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(size), nn.Linear(size, size), nn.SiLU(), nn.Linear(size, size, bias=False))
            for _ in range(count)
        )
        for head in self.heads:
            nn.init.zeros_(head[-1].weight)  # type: ignore[index]

    def log_probs(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, sequences: Sequences, temperature: float
    ) -> Tensor:
        """Σ_n log π_n(o_{t+n} | s_t) for each response token t, over the n with t+n in the response. [response tokens].

        ``hidden`` [response tokens, size], ``weight`` and ``bias`` of the unembedding; all of them and the heads get
        gradients.
        """
        total = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for at, chosen in self._predict(hidden, weight, bias, sequences, temperature):
            total = total.index_add(0, at, chosen)
        return total

    def loss(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, sequences: Sequences) -> Tensor:
        """Cross-entropy of the sampled tokens t+n at temperature 1, in nats, summed over tokens and heads. Scalar."""
        parts = [chosen.sum() for _, chosen in self._predict(hidden, weight, bias, sequences, 1.0)]
        return -sum(parts, start=hidden.new_zeros(()))

    def _predict(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, sequences: Sequences, temperature: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each head: the indices t of response tokens with t+n in the response, and log π_n of token t+n."""
        ids = sequences.ids[sequences.mask]
        lengths = sequences.mask.sum(1)
        left = (lengths.unsqueeze(1) - sequences.mask.cumsum(1))[sequences.mask]  # response tokens after each one
        for n, head in enumerate(self.heads, start=1):
            followed = (left >= n).nonzero().squeeze(1)
            at, targets = to_device((followed, ids[followed + n]), hidden.device)
            state = hidden[at]
            scored = state + head(state), weight, bias, targets, temperature
            yield at, log_probs_and_entropy(*scored, entropy_gradient=False)[0]
