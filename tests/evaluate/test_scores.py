"""Scores of one benchmark: pass@k, majority vote, and a benchmark's record from its samples."""

import itertools

import pytest

from policygrain.evaluate.scores import majority, pass_at_k, powers_of_two, score
from policygrain.records import EvaluatedSample


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    for n, correct in [(5, 0), (5, 2), (6, 6), (4, 1)]:
        outcomes = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(outcomes, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))
    with pytest.raises(ValueError, match="k=3, n=2"):
        pass_at_k(2, 1, 3)
    assert powers_of_two(32) == [1, 2, 4, 8, 16, 32] and powers_of_two(6) == [1, 2, 4, 6]


def test_majority():
    assert majority(["7", "7", "3"], [True, True, False]) == 1.0
    assert majority(["7", "3", "3"], [True, False, False]) == 0.0
    assert majority(["7", "3"], [True, False]) == 0.5
    assert majority([None, None], [False, False]) == 0.0


def sample(problem: str, number: int, outcome: str, answer: str, tokens: int) -> EvaluatedSample:
    """A response, truncated at 9 tokens."""
    text = f"\\boxed{{{answer}}}"
    return EvaluatedSample("set", problem, number, False, "?", "1", text, answer, outcome, tokens, tokens >= 9)


def test_the_record_of_a_benchmark_by_hand():
    """Two problems of two samples: right on 2 and 1; the second is among the training prompts."""

    rows = [
        sample("a", 0, "correct", "1", 3),
        sample("a", 1, "correct", "1", 4),
        sample("b", 0, "incorrect", "2", 9),
        sample("b", 1, "correct", "1", 5),
    ]
    found = score(rows, {"b"})
    assert (found.n, found.problems, found.per_problem, found.contaminated) == (2, 2, [1.0, 0.5], [1])
    assert found.accuracy == 0.75 and found.pass_at == {1: 0.75, 2: 1.0}
    # One vote each for 1 and 2 on the second problem: half right.
    assert found.majority == 0.75
    assert found.outcomes == {"correct": 3, "incorrect": 1} and (found.tokens, found.truncated) == (21, 0.25)
