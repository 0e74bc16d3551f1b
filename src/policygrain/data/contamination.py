"""Contamination: benchmark problems that are among the training prompts.

`exact`: the same letters and digits in order, whatever the spaces, case, signs and LaTeX's layout; `near`: a Jaccard
similarity of the sets of words and numbers of at least 0.8, where both have at least 8, as few are alike by chance.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

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
    return _TOKEN.findall(_LAYOUT.sub(" ", text).lower())


def overlaps(
    training: Sequence[Problem], benchmarks: Mapping[str, Iterable[Problem]]
) -> dict[str, list[dict[str, Any]]]:
    """By benchmark: the pairs of one of its problems and a training prompt that are exact or near duplicates."""
    texts = [tokens(problem.problem) for problem in training]
    sizes = np.array([len(set(text)) for text in texts], int)
    same: dict[str, list[int]] = defaultdict(list)  # text without spaces → prompts
    prompts: dict[str, list[int]] = defaultdict(list)  # word → prompts
    for i, text in enumerate(texts):
        same["".join(text)].append(i)
        for word in set(text):
            prompts[word].append(i)
    containing = {word: np.array(found) for word, found in prompts.items()}
    pairs: dict[str, list[dict[str, Any]]] = {name: [] for name in benchmarks}
    for name, problem in ((name, problem) for name, problems in benchmarks.items() for problem in problems):
        words = set(text := tokens(problem.problem))
        found = [np.array([], int), *(containing[word] for word in words & containing.keys())]
        shared = np.bincount(np.concatenate(found), minlength=len(training))
        similarity = shared / np.maximum(sizes + len(words) - shared, 1)
        near = (similarity >= THRESHOLD - 1e-9) & (np.minimum(sizes, len(words)) >= FEWEST_TOKENS)
        exact = set(same["".join(text)] if text else [])
        for i in sorted(exact.union(np.flatnonzero(near).tolist())):
            pair = {"benchmark": problem.id, "training": training[i].id, "kind": "exact" if i in exact else "near"}
            pairs[name].append(pair | {"similarity": round(float(similarity[i]), 4)})
    return pairs
