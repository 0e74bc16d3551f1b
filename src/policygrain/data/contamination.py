"""Contamination: benchmark problems that are among the training prompts, as exact or near duplicates.

Two texts are exact duplicates (`exact`) if they have the same sequence of letters and digits, ignoring spaces, case,
punctuation, signs and LaTeX layout commands. They are near duplicates (`near`) if their sets of words and numbers have
a Jaccard similarity of at least 0.8 and at least 8 elements each; smaller sets are often similar by chance. Paraphrases
are not found, and different problems from one template may be, so pairs are listed and not only counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .problem import Problem

THRESHOLD = 0.8
FEWEST_TOKENS = 8

# Layout commands, which are ignored; commands with a meaning (\sqrt, \pi, \sin) are words.
_LAYOUT = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|[dtc]?frac|text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|tt|cal)|boldsymbol"
    r"|operatorname|displaystyle|limits|q?quad|hspace|vspace|phantom)(?![a-zA-Z])"
)
# Chinese has no spaces between words, so each Han character is a word.
_TOKEN = re.compile(r"[0-9]+|[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+")


def tokens(text: str) -> list[str]:
    """The words and numbers of a problem in order, in lower case."""
    return _TOKEN.findall(_LAYOUT.sub(" ", text).lower())


@dataclass(frozen=True)
class Overlap:
    """A benchmark problem and a duplicate training prompt; ``similarity`` is the Jaccard similarity of their words."""

    benchmark: str  # problem ids
    training: str
    kind: Literal["exact", "near"]
    similarity: float


class TrainingIndex:
    """An index of training prompts, to find their duplicates in benchmarks.

    All near duplicates are found, by prefix filtering: with tokens ordered from rare to common, two sets with a Jaccard
    similarity of at least t share one of the first |s| − ⌈t|s|⌉ + 1 tokens of each set s. Only such pairs are compared.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems
        texts = [tokens(p.problem) for p in problems]
        self.sets = [frozenset(text) for text in texts]
        frequency = Counter(token for words in self.sets for token in words)
        # Ties are broken by the token itself, so that all sets have the same order.
        self.rank = {token: i for i, token in enumerate(sorted(frequency, key=lambda t: (frequency[t], t)))}
        self.exact: dict[str, list[int]] = defaultdict(list)
        self.prefixes: dict[str, list[int]] = defaultdict(list)
        for i, (text, words) in enumerate(zip(texts, self.sets, strict=True)):
            if text:
                self.exact["".join(text)].append(i)
            if len(words) >= FEWEST_TOKENS:
                for token in self._prefix(words):
                    self.prefixes[token].append(i)

    def _prefix(self, words: frozenset[str]) -> list[str]:
        # Tokens that no training prompt contains are the rarest.
        ordered = sorted(words, key=lambda token: (self.rank.get(token, -1), token))
        return ordered[: len(words) - math.ceil(THRESHOLD * len(words) - 1e-9) + 1]

    def overlaps(self, benchmark: Iterable[Problem]) -> list[Overlap]:
        """All pairs of a benchmark problem and a training prompt that are exact or near duplicates, in order."""
        pairs = []
        for problem in benchmark:
            text = tokens(problem.problem)
            words = frozenset(text)
            same = set(self.exact.get("".join(text), ()))
            candidates = set(same)
            if len(words) >= FEWEST_TOKENS:
                candidates.update(i for token in self._prefix(words) for i in self.prefixes.get(token, ()))
            for i in sorted(candidates):
                sizes = len(words), len(self.sets[i])
                # Sets of too different sizes cannot reach the threshold.
                if i not in same and min(sizes) < THRESHOLD * max(sizes) - 1e-9:
                    continue
                similarity = len(words & self.sets[i]) / len(words | self.sets[i])
                if i in same or similarity >= THRESHOLD - 1e-9:
                    kind: Literal["exact", "near"] = "exact" if i in same else "near"
                    pairs.append(Overlap(problem.id, self.problems[i].id, kind, round(similarity, 4)))
        return pairs


def as_data(overlaps: Mapping[str, Sequence[Overlap]]) -> dict[str, list[dict[str, Any]]]:
    """Pairs by benchmark, as in `contamination.json`."""
    return {name: [asdict(pair) for pair in pairs] for name, pairs in overlaps.items()}
