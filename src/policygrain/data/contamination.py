"""Contamination: benchmark problems that are among the training prompts, as exact or near duplicates.

Two texts are exact duplicates (`exact`) if they have the same sequence of letters and digits, ignoring spaces, case,
punctuation, signs and LaTeX layout commands. They are near duplicates (`near`) if their sets of words and numbers have
a Jaccard similarity of at least 0.8 and at least 8 elements each; smaller sets are often similar by chance. Paraphrases
are not found, and different problems from one template may be, so pairs are listed and not only counted.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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
    """An index of training prompts, to find their duplicates in benchmarks."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems
        self.exact: dict[str, list[int]] = defaultdict(list)  # text without spaces → prompts
        containing: dict[str, list[int]] = defaultdict(list)  # word → prompts
        for i, problem in enumerate(problems):
            text = tokens(problem.problem)
            self.exact["".join(text)].append(i)
            for word in set(text):
                containing[word].append(i)
        self.containing = {word: np.array(prompts) for word, prompts in containing.items()}
        self.sizes = self._shared(self.containing)  # words of each prompt

    def _shared(self, words: Iterable[str]) -> NDArray[np.int64]:
        """How many of ``words`` each prompt contains, [prompts]."""
        found = [self.containing[word] for word in words if word in self.containing]
        return np.bincount(np.concatenate([np.array([], int), *found]), minlength=len(self.problems))

    def overlaps(self, benchmark: Iterable[Problem]) -> list[Overlap]:
        """All pairs of a benchmark problem and a training prompt that are exact or near duplicates, in order."""
        pairs = []
        for problem in benchmark:
            if not (text := tokens(problem.problem)):
                continue
            words, exact = set(text), set(self.exact.get("".join(text), ()))
            shared = self._shared(words)
            similarity = shared / (self.sizes + len(words) - shared)
            near = (similarity >= THRESHOLD - 1e-9) & (np.minimum(self.sizes, len(words)) >= FEWEST_TOKENS)
            for i in sorted(exact.union(np.flatnonzero(near).tolist())):
                kind: Literal["exact", "near"] = "exact" if i in exact else "near"
                pairs.append(Overlap(problem.id, self.problems[i].id, kind, round(float(similarity[i]), 4)))
        return pairs


def as_data(overlaps: Mapping[str, Sequence[Overlap]]) -> dict[str, list[dict[str, Any]]]:
    """Pairs by benchmark, as in `contamination.json`."""
    return {name: [asdict(pair) for pair in pairs] for name, pairs in overlaps.items()}
