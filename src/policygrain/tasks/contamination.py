"""Which benchmark problems are among the training prompts, word for word or nearly so.

Two texts are the same (`exact`) when their letters and digits are, one after the other: spaces, case, punctuation,
signs and LaTeX's layout do not count. They are nearly the same (`near`) when the sets of their words and numbers have a
Jaccard similarity of at least 0.8 and both have at least 8 of them; below that, sets agree by chance. Paraphrases are
not found, and problems cut from one template are, which is why pairs are listed and not only counted.
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

# Commands that say how something looks; those that say what it is (\sqrt, \pi, \sin) are words like any other.
_LAYOUT = re.compile(
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|[dtc]?frac|text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|tt|cal)|boldsymbol"
    r"|operatorname|displaystyle|limits|q?quad|hspace|vspace|phantom)(?![a-zA-Z])"
)
# Han characters have no spaces between words, so each of them counts as one.
_TOKEN = re.compile(r"[0-9]+|[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+")


def tokens(text: str) -> list[str]:
    """The words and numbers of a problem, in order and in small letters."""
    return _TOKEN.findall(_LAYOUT.sub(" ", text).lower())


@dataclass(frozen=True)
class Overlap:
    """A benchmark problem and the training prompt that it is found in; ``similarity`` is of their sets of tokens."""

    benchmark: str  # problem ids
    training: str
    kind: Literal["exact", "near"]
    similarity: float


class TrainingIndex:
    """Training prompts, indexed once and compared with as many benchmarks as there are.

    Near-duplicates are found exactly, by prefix filtering: with tokens ordered from rare to common, two sets whose
    Jaccard similarity is at least t share a token among the first |s| − ⌈t|s|⌉ + 1 of either. Only what does is
    compared.
    """

    def __init__(self, problems: Sequence[Problem], threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self.problems = problems
        texts = [tokens(p.problem) for p in problems]
        self.sets = [frozenset(text) for text in texts]
        frequency = Counter(token for found in self.sets for token in found)
        # Ties are broken by the token itself, so that both sides have one order.
        self.rank = {token: i for i, token in enumerate(sorted(frequency, key=lambda t: (frequency[t], t)))}
        self.exact: dict[str, list[int]] = defaultdict(list)
        self.prefixes: dict[str, list[int]] = defaultdict(list)
        for i, (text, found) in enumerate(zip(texts, self.sets, strict=True)):
            if text:
                self.exact["".join(text)].append(i)
            if len(found) >= FEWEST_TOKENS:
                for token in self._prefix(found):
                    self.prefixes[token].append(i)

    def _prefix(self, found: frozenset[str]) -> list[str]:
        # A token that no training prompt has is the rarest of all.
        ordered = sorted(found, key=lambda token: (self.rank.get(token, -1), token))
        return ordered[: len(found) - math.ceil(self.threshold * len(found) - 1e-9) + 1]

    def overlaps(self, benchmark: Iterable[Problem]) -> list[Overlap]:
        """Every pair of a benchmark problem and a training prompt that are the same or nearly so, in their order."""
        pairs = []
        for problem in benchmark:
            text = tokens(problem.problem)
            found = frozenset(text)
            same = set(self.exact.get("".join(text), ()))
            candidates = set(same)
            if len(found) >= FEWEST_TOKENS:
                candidates.update(i for token in self._prefix(found) for i in self.prefixes.get(token, ()))
            for i in sorted(candidates):
                sizes = len(found), len(self.sets[i])
                # Sets whose sizes differ too much cannot be alike, whatever is in them.
                if i not in same and min(sizes) < self.threshold * max(sizes) - 1e-9:
                    continue
                similarity = _jaccard(found, self.sets[i])
                if i in same or similarity >= self.threshold - 1e-9:
                    kind: Literal["exact", "near"] = "exact" if i in same else "near"
                    pairs.append(Overlap(problem.id, self.problems[i].id, kind, round(similarity, 4)))
        return pairs


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


def as_data(found: Mapping[str, Sequence[Overlap]]) -> dict[str, list[dict[str, Any]]]:
    """Benchmark → list of pairs, as written to `contamination.json`."""
    return {name: [asdict(pair) for pair in pairs] for name, pairs in found.items()}
