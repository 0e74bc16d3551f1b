"""Scores of one benchmark from the outcomes of its samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k samples is correct) from n samples (arXiv 2107.03374 eq. 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n, got k={k}, n={n}")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4 … up to n, and n itself."""
    return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def majority(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """maj@n of one problem: 1 if the most frequent answer is correct, else 0; the mean if several are most frequent.

    Answers are compared as text.
    """
    counts = Counter(a for a in answers if a is not None)
    if not counts:
        return 0.0
    top = max(counts.values())
    winners = [a for a, c in counts.items() if c == top]
    is_correct = dict(zip(answers, correct, strict=True))
    return sum(is_correct[w] for w in winners) / len(winners)
