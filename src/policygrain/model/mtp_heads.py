"""Multi-token prediction: heads that foresee the tokens after the next one (after arXiv 2404.19737).

Head n reads the hidden state from which the backbone predicts token t and predicts token t+n, through a small residual
module and the backbone's own unembedding. MPO (2602.14386) took the future part of its block ratio from such heads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .sequences import Sequences
from .unembedding import log_probs


class MTPHeads(nn.Module):
    """Heads for n = 1..``count`` over hidden states of ``size``; they begin as the backbone's own prediction."""

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
        """Σ_n log π_n(o_{t+n} | s_t) for each response token t, over those n whose token there is. [response tokens].

        ``hidden`` [response tokens, size], ``weight`` and ``bias`` of the unembedding; gradients reach all of them and
        the heads.
        """
        total = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for at, chosen in self._predict(hidden, weight, bias, sequences, temperature):
            total = total.index_add(0, at, chosen)
        return total

    def loss(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, sequences: Sequences) -> Tensor:
        """Cross-entropy of the sampled future at temperature 1, in nats, summed over tokens and heads. Scalar."""
        parts = [chosen.sum() for _, chosen in self._predict(hidden, weight, bias, sequences, 1.0)]
        return -sum(parts, start=hidden.new_zeros(()))

    def _predict(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, sequences: Sequences, temperature: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each head: which response tokens it looks ahead from, and log π_n of what it finds there."""
        ids = sequences.ids[sequences.mask]
        lengths = sequences.mask.sum(1)
        left = (lengths.unsqueeze(1) - sequences.mask.cumsum(1))[sequences.mask]  # response tokens after each one
        for n, head in enumerate(self.heads, start=1):
            at = (left >= n).nonzero().squeeze(1)
            state = hidden[at]
            yield at, log_probs(state + head(state), weight, bias, ids[at + n], temperature)
