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
from typing import Any

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


def overlaps(
    training: Sequence[Problem], benchmarks: Mapping[str, Iterable[Problem]]
) -> dict[str, list[dict[str, Any]]]:
    """By benchmark: all pairs of one of its problems and a training prompt that are exact or near duplicates, in order.

    A pair has the ids `benchmark` and `training`, its `kind`, and the Jaccard `similarity` of words.
    """
    same: dict[str, list[int]] = defaultdict(list)  # text without spaces → prompts
    prompts: dict[str, list[int]] = defaultdict(list)  # word → prompts
    for i, problem in enumerate(training):
        text = tokens(problem.problem)
        same["".join(text)].append(i)
        for word in set(text):
            prompts[word].append(i)
    containing = {word: np.array(found) for word, found in prompts.items()}

    def shared_with(words: Iterable[str]) -> NDArray[np.int64]:
        """How many of ``words`` each prompt contains, [prompts]."""
        found = [containing[word] for word in words if word in containing]
        return np.bincount(np.concatenate([np.array([], int), *found]), minlength=len(training))

    sizes = shared_with(containing)  # words of each prompt
    pairs: dict[str, list[dict[str, Any]]] = {name: [] for name in benchmarks}
    for name, problem in ((name, problem) for name, problems in benchmarks.items() for problem in problems):
        if not (text := tokens(problem.problem)):
            continue
        words, exact = set(text), set(same.get("".join(text), ()))
        shared = shared_with(words)
        similarity = shared / (sizes + len(words) - shared)
        near = (similarity >= THRESHOLD - 1e-9) & (np.minimum(sizes, len(words)) >= FEWEST_TOKENS)
        for i in sorted(exact.union(np.flatnonzero(near).tolist())):
            pair = {"benchmark": problem.id, "training": training[i].id, "kind": "exact" if i in exact else "near"}
            pairs[name].append(pair | {"similarity": round(float(similarity[i]), 4)})
    return pairs
