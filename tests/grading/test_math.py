"""The graders as objects: order, errors of golds, bounds, names and protocols."""

import subprocess
import sys
import time

import pytest

from policygrain.errors import UserError
from policygrain.grading import MathGrader, NumericGrader, Options, open_grader
from policygrain.grading.math import MAX_LENGTH, grade_directly


def test_order_and_duplicates(grader, monkeypatch):
    tasks = []
    run = grader.pool.run
    monkeypatch.setattr(grader.pool, "run", lambda given: tasks.append(len(given)) or run(given))
    answers = [f"z \\cdot {i % 5}" for i in range(100)]
    expected = ["correct" if i % 5 == 3 else "incorrect" for i in range(100)]
    assert grader.compare(["3z"] * 100, answers) == expected
    assert tasks == [5]


def test_boxes_of_a_list_are_one_answer_if_the_gold_answer_is_known_to_be_one(grader):
    response = "first \\boxed{7}, thus $\\boxed{1}$, $\\boxed{2}$ and \\boxed{3}."
    assert grader.grade(["3, 1, 2"] * 2, [response, "\\boxed{3}"], Options(list_answer=True)) == [
        "correct",
        "incorrect",
    ]


def test_an_unreadable_gold_answer_is_an_error_that_names_the_problem(grader):
    with pytest.raises(UserError, match=r"q-2.*np\.arcsin"):
        grader.check_golds(["1", "np.arcsin(10/13)", "x"], ["q-1", "q-2", "q-3"])
    with pytest.raises(UserError, match="q-2: the gold answer"):
        grader.grade(["1", "np.arcsin(10/13)"], ["\\boxed{1}"] * 2, ids=["q-1", "q-2"])
    assert grader.compare(["x+1"], ["1+x"]) == ["correct"]


def test_an_answer_is_bounded(grader):
    """The time limit is for the main process, where no worker's limit holds."""
    begin = time.monotonic()
    deep, long = "{" * 30_000 + "1" + "}" * 30_000, "1+" * 50_000 + "1"
    for gold in (deep, long):
        with pytest.raises(UserError, match="cannot be read as mathematics"):
            grader.compare([gold], ["1"])
        assert grader.compare([gold], [gold]) in (["correct"], ["unparsable"])
    assert grader.unreadable_golds(["1", deep, "x", long]) == [1, 3]
    assert grade_directly("1", "x" * (MAX_LENGTH + 1), Options()) == "unparsable"
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("name", ["numeric", "math"])
def test_graders_by_name_and_protocol(name):
    response = "I say \\boxed{4}.\nAnswer: $5$"
    for extraction, gold in (("boxed", "4"), ("answer_line", "5"), ("qwen_math", "4")):
        with open_grader(name, extraction) as opened:
            assert isinstance(opened, NumericGrader if name == "numeric" else MathGrader)
            assert opened.grade([gold], [response]) == ["correct"], extraction
            assert (extraction in opened.name) == (extraction != "boxed")
    with pytest.raises(UserError, match="Did you mean 'answer_line'"):
        open_grader(name, "answer_lines")
    with pytest.raises(UserError, match=f"Did you mean '{name}'"):
        open_grader(f"{name}s")


def test_the_room_is_imported_without_computer_algebra():
    heavy = "{'sympy', 'math_verify', 'pebble', 'torch', 'transformers'}"
    code = f"import sys, policygrain.grading; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
