"""The code grader: programs in responses, and programs that want to pass without solving anything."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policygrain.data.problem import write_problems
from policygrain.data.published import convert
from policygrain.data.sets import SETS
from policygrain.data.sources import check_golds
from policygrain.errors import UserError
from policygrain.grading import CodeGrader, Item, NumericGrader, Options, open_grader
from policygrain.grading.sandbox import isolation

from ..support.files import CODE
from . import items, read

TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1]\n"
DOUBLE = Options(
    tests=TESTS, entry_point="double", setup="from typing import Any\n\n", signature="def double(x: Any):\n"
)
RIGHT, WRONG = "def double(x):\n    return 2 * x\n", "def double(x): return x + 1"
# Fields: kind, name, response, allowed outcomes, and tests where they are not those of DOUBLE. Kinds: right;
# wrong; unusual, where tests that the program fails end in an unusual way; caught, where they catch what it raises;
# never, where they do not call it, with a pattern of what is said.
CASES = read("programs.jsonl")


@pytest.fixture(scope="module")
def grader(bubblewrap):
    with CodeGrader(workers=2, seconds=2.0, mib=512) as found:
        yield found


@pytest.fixture(scope="module")
def hasty(bubblewrap):
    """For programs and tests that take any time that they are given."""
    with CodeGrader(workers=1, seconds=0.3, mib=512) as found:
        yield found


def named(*kinds: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in CASES if case["kind"] in kinds]


@pytest.mark.parametrize("case", named("right", "wrong", "unusual", "caught"))
def test_what_solves_the_problem_passes_and_nothing_else(case, grader, hasty):
    """However the tests end, and the programs after it are graded as ever."""
    used = hasty if "timeout" in case["outcome"] else grader
    tried = Item("", case["response"], replace(DOUBLE, tests=case.get("tests", TESTS)))
    began = time.monotonic()
    first, *others = used.grade([tried, *items("", WRONG, RIGHT, options=DOUBLE)])
    assert first in case["outcome"] and others == ["incorrect", "correct"] and time.monotonic() - began < 60


def test_what_tests_change_does_not_reach_those_of_another_program(grader):
    tests = "import builtins\nassert not hasattr(builtins, 'seen')\nbuiltins.seen = True\nassert double(2) == 4"
    options = Options(tests=tests, entry_point="double")
    assert grader.grade(items("", *[RIGHT] * 6, options=options)) == ["correct"] * 6


@pytest.mark.parametrize("case", named("never"))
def test_tests_that_do_not_call_the_function_are_no_grade(case, grader):
    wrong = Options(tests=case["tests"], entry_point="double")
    with pytest.raises(UserError, match=f"q-2: {case['says']}"):
        grader.grade([Item("", RIGHT, DOUBLE, "q-1"), Item("", RIGHT, wrong, "q-2")])


@pytest.mark.usefixtures("bubblewrap")
def test_a_study_may_have_both_kinds_of_problems(grader):
    with open_grader("numeric", tests=True) as both:
        assert both.name.startswith(f"{NumericGrader().name}; code-6 ({isolation()}, ")
        found = both.grade([Item("7", "\\boxed{7}"), Item("", RIGHT, DOUBLE), Item("8", "\\boxed{7}")])
        assert found == ["correct", "correct", "incorrect"]
    assert open_grader("numeric").name == NumericGrader().name
    with pytest.raises(UserError, match="q-7: the problem has no tests"):
        grader.grade([Item("", "x", name="q-7")])


@pytest.mark.release
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("name", CODE)
def test_every_solution_passes_and_no_trivial_one(name, benchmarks_folder, tmp_path):
    file = benchmarks_folder / "code" / Path(SETS[name].github).name
    if not file.exists():
        pytest.skip(f"{file} is not there")
    problems = convert(SETS[name], file.read_bytes())
    options = [replace(p.options, **SETS[name].options(i)) for i, p in enumerate(problems)]
    write_problems(tmp_path / "set.jsonl", [replace(p, options=o) for p, o in zip(problems, options, strict=True)])
    check_golds([tmp_path / "set.jsonl"], "numeric")
