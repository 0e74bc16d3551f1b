"""The code grader: programs in responses, and programs that want to pass without solving anything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from policygrain.data import registry
from policygrain.data.convert import convert
from policygrain.errors import UserError
from policygrain.grading import ByProblem, CodeGrader, NumericGrader, Options, open_grader
from policygrain.grading.code import program_of
from policygrain.grading.sandbox import isolation

TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1]\n"
DOUBLE = Options(
    tests=TESTS, entry_point="double", setup="from typing import Any\n\n", signature="def double(x: Any):\n"
)


@pytest.fixture(scope="module")
def grader(bubblewrap: None) -> Iterator[CodeGrader]:
    with CodeGrader(workers=2, seconds=2.0, mib=512) as found:
        yield found


@pytest.fixture(scope="module")
def hasty(bubblewrap: None) -> Iterator[CodeGrader]:
    """For programs that take any time that they are given."""
    with CodeGrader(workers=1, seconds=0.5, mib=512) as found:
        yield found


RIGHT = {
    "a block": "Here it is:\n```python\ndef double(x: Any):\n    return x + x\n```\nDone.",
    "the last of two blocks": "```python\ndef double(x): return 0\n```\n```python\ndef double(x): return 2 * x\n```",
    "a block without an end": "```python\ndef double(x):\n    return 2 * x",
    "no block": "def double(x):\n    return 2 * x\n",
    "a completion": "    return 2 * x\n\ndef main():\n    print(double(1)",
    "a completion in a block": "```python\n    return 2 * x\n```",
    "after another language": "```bash\npip install x\n```\n```python\ndef double(x): return 2 * x\n```\nDone.",
    "before another language": "```python\ndef double(x): return 2 * x\n```\n```text\ndef double(x): 4\n```",
    "Windows' line ends": "So:\r\n```python\r\ndef double(x):\r\n    return 2 * x\r\n```\r\nDone.",
    "in a list": "1. So:\n   ```python\n   def double(x):\n       return 2 * x\n   ```\n2. Done.",
    "a title": '```python title="a.py"\ndef double(x): return 2 * x\n```',
    "backticks in a line": "```x``` is doubled:\n```python\ndef double(x): return 2 * x\n```",
    "an empty block": "```python\n```\n```python\ndef double(x): return 2 * x\n```",
    "a fence in a docstring": '```python\ndef double(x):\n    """\n    ```\n    2\n    """\n    return 2 * x\n```',
    "an end that is less indented": "   ```python\ndef double(x): return 2 * x\n```\nDone.",
    "backticks in the text before": "I use ``` to mark code.\n\n```python\ndef double(x): return 2 * x\n```",
    "after text on its line": "So: ```python\ndef double(x): return 2 * x\n```",
    "a lambda": "```\nhelp = lambda x: 2 * x\ndef double(x): return help(x)\n```",
}


@pytest.mark.parametrize("name", RIGHT)
def test_programs_are_found_in_responses(name: str, grader: CodeGrader) -> None:
    assert grader.grade([""], [RIGHT[name]], DOUBLE) == ["correct"]


WRONG = {
    "no program": ("I do not know.", "unparsable"),
    "nothing": ("", "unparsable"),
    "no Python": ("```python\ndef double(x: return\n```", "unparsable"),
    "wrong": ("def double(x): return x + 1", "incorrect"),
    "raises": ("def double(x): raise ValueError", "incorrect"),
    "sleeps": ("import time\ndef double(x): time.sleep(60)", "timeout"),
    "spins": ("def double(x):\n    while True: pass", "timeout"),
    "spins at once": ("while True: pass\ndef double(x): return 2 * x", "timeout"),
    "allocates": ("def double(x): return bytearray(10**10)", "error"),
    "too long": ("#" * 10**7 + "\ndef double(x): return 2 * x", "unparsable"),
    # They want to pass.
    "exits before the tests": ("def double(x): return x\nimport sys; sys.exit(0)", "incorrect"),
    "exits in a test": ("import os\ndef double(x): os._exit(0)", "incorrect"),
    "prints a verdict": ("def double(x):\n    print('correct', flush=True)\n    return x", "incorrect"),
    "writes a reply": (
        "import os\ndef double(x):\n    for fd in range(3, 20):\n        try: os.write(fd, b'{\"value\": 4}\\n')\n"
        "        except OSError: pass\n    return x",
        "incorrect",
    ),
    "is equal to everything": (
        "class Any_:\n    def __eq__(self, other): return True\ndef double(x): return Any_()",
        "incorrect",
    ),
    "is an integer that is equal to everything": (
        "class I(int):\n    def __eq__(self, other): return True\ndef double(x): return I(7)",
        "incorrect",
    ),
    "patches assert": (
        "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\ndef double(x): return x",
        "incorrect",
    ),
    "replaces the checker": ("def check(candidate): pass\ndef double(x): return x", "incorrect"),
    "replaces the checker's module": (
        "import sys\nfor m in [*sys.modules.values()]:\n    setattr(m, 'check', print)\ndef double(x): return x",
        "incorrect",
    ),
    "kills its parent": ("import os\ndef double(x): os.kill(os.getppid(), 9)", "incorrect"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_solve_the_problem_does_not_pass(name: str, grader: CodeGrader, hasty: CodeGrader) -> None:
    program, outcome = WRONG[name]
    response = f"```python\n{program}\n```" if "def" in program else program
    assert (hasty if outcome == "timeout" else grader).grade([""], [response], DOUBLE) == [outcome]


def test_outcomes_are_in_the_order_of_the_responses(grader: CodeGrader) -> None:
    answers = [RIGHT["a block"], WRONG["wrong"][0], "", RIGHT["a completion"]] * 8
    assert grader.grade([""] * 32, answers, DOUBLE) == ["correct", "incorrect", "unparsable", "correct"] * 8


FAILS = "assert double(2) == 4"
# Tests that a wrong program fails, and in which something ends in an unusual way.
UNUSUAL = {
    "SystemExit": f"try: {FAILS}\nexcept AssertionError: raise SystemExit(0)",
    "sys.exit at the end": f"import sys\ntry: {FAILS}\nfinally: sys.exit(0)",
    "KeyboardInterrupt": f"try: {FAILS}\nexcept AssertionError: raise KeyboardInterrupt",
    "GeneratorExit": f"try: {FAILS}\nexcept AssertionError: raise GeneratorExit",
    "a failing pytest.raises": "import pytest\nwith pytest.raises(ValueError): double('x')",
    "unittest.main": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
    "        self.assertEqual(double(2), 4)\nimport sys\nsys.modules['tests'] = type('M', (), {'T': T})\n"
    "unittest.main('tests', argv=['x'])",
    "os._exit": f"import os\ntry: {FAILS}\nexcept AssertionError: os._exit(0)",
    "a signal": f"import os\ntry: {FAILS}\nexcept AssertionError: os.kill(os.getpid(), 9)",
    "a fork": f"import os\nchild = os.fork()\nif child: os.waitpid(child, 0); {FAILS}",
    "a fork that ends first": f"import os, time\nif os.fork(): time.sleep(1); {FAILS}",
    "a closed connection": f"import os\ntry: {FAILS}\nexcept AssertionError: os.closerange(3, 64)",
    "a line in every file": "import os\ntry: double(2)\nfinally:\n    for i in range(3, 64):\n"
    '        try: os.write(i, b\'\\xff\\0\\0\\x10 "correct"\\n"retired"\\n\')\n        except OSError: pass\n' + FAILS,
    "no time limit": "import signal, time\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
    f"try: {FAILS}\nexcept AssertionError: time.sleep(10**6)",
}


@pytest.mark.slow
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("name", UNUSUAL)
def test_tests_that_end_in_any_way_are_a_grade(name: str) -> None:
    """And the programs after it are graded as ever."""
    wrong = Options(tests=UNUSUAL[name], entry_point="double")
    programs = ["def double(x): return x", RIGHT["no block"]]
    began = time.monotonic()
    with CodeGrader(workers=1, seconds=0.5, mib=512) as grader:
        first, *others = grader.grade([""] * 5, [*programs[:1], *programs * 2], [wrong, DOUBLE, DOUBLE, DOUBLE, DOUBLE])
    assert first in ("incorrect", "error", "timeout") and time.monotonic() - began < 60
    assert others == ["incorrect", "correct"] * 2


CAUGHT = {
    "StopIteration in map": ("raise StopIteration", "assert all(a == b for a, b in zip(map(double, [1, 2]), [2, 4]))"),
    "an exit in raises": ("import os; os._exit(0)", "try: double(1)\nexcept Exception: pass\nelse: assert False"),
    "no end in a bare except": ("\n    while True: pass", "try: double(1)\nexcept: pass"),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_what_a_program_raises_does_not_pass_as_the_end_of_something(name: str, hasty: CodeGrader) -> None:
    body, tests = CAUGHT[name]
    outcomes = hasty.grade([""], [f"def double(x): {body}"], Options(tests=tests, entry_point="double"))
    assert outcomes in (["incorrect"], ["timeout"])


def test_what_tests_change_does_not_reach_those_of_another_program(grader: CodeGrader) -> None:
    tests = "import builtins\nassert not hasattr(builtins, 'seen')\nbuiltins.seen = True\nassert double(2) == 4"
    outcomes = grader.grade([""] * 6, [RIGHT["no block"]] * 6, Options(tests=tests, entry_point="double"))
    assert outcomes == ["correct"] * 6


@pytest.mark.parametrize(
    "tests", ["METADATA = {}", "def test_double(): assert double(2) == 4", "import no_such_module"]
)
def test_tests_that_do_not_call_the_function_are_no_grade(tests: str, grader: CodeGrader) -> None:
    wrong = Options(tests=tests, entry_point="double")
    with pytest.raises(UserError, match=r"q-2: its tests (never call|fail before they call) `double`"):
        grader.grade([""] * 2, [RIGHT["no block"]] * 2, [DOUBLE, wrong], ["q-1", "q-2"])


def test_a_child_of_the_tests_does_not_end_the_program(grader: CodeGrader) -> None:
    tests = "import os\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)\n    assert double(2) == 4"
    assert grader.grade([""], [RIGHT["no block"]], Options(tests=tests, entry_point="double")) == ["correct"]


def test_a_problem_without_tests_is_named(grader: CodeGrader) -> None:
    with pytest.raises(UserError, match="q-7: the problem has no tests"):
        grader.grade([""], ["x"], Options(), ["q-7"])


@pytest.mark.usefixtures("bubblewrap")
def test_a_study_may_have_both_kinds_of_problems() -> None:
    with open_grader("numeric", tests=True) as both:
        assert isinstance(both, ByProblem)
        assert both.name.startswith(f"{NumericGrader().name}; code-4 ({isolation()}, ")
        found = both.grade(
            ["7", "", "8"], ["\\boxed{7}", RIGHT["a block"], "\\boxed{7}"], [Options(), DOUBLE, Options()]
        )
        assert found == ["correct", "correct", "incorrect"]
    assert open_grader("numeric").name == NumericGrader().name


def test_code_before_the_function_comes_before_a_program_too() -> None:
    assert program_of("def double(x): return x", DOUBLE) == f"{DOUBLE.setup}\ndef double(x): return x\n"
    completed = program_of("    return x\n\nprint(double(2))", DOUBLE)
    assert completed == f"{DOUBLE.setup}\n{DOUBLE.signature}    return x\n\n"


# ---- the published sets ---------------------------------------------------------------------------------------------

SETS = {
    "humaneval": "HumanEval.jsonl.gz",
    "humaneval_plus": "HumanEvalPlus-OriginFmt.jsonl.gz",
    "mbpp_plus": "MbppPlus-OriginFmt.jsonl.gz",
}


def wrong(program: str, name: str) -> str:
    """The program with another value, which is true where the right one is not, and nothing where it is."""
    other = f"def {name}(*args, **keywords):\n    value = _right(*args, **keywords)\n"
    return f"{program}\n\n_right = {name}\n{other}    return None if value else (value, 0)\n"


@pytest.mark.release
@pytest.mark.parametrize("name", SETS)
def test_every_solution_passes_and_a_changed_one_fails(name: str, benchmarks_folder: Path, grader: CodeGrader) -> None:
    file = benchmarks_folder / "code" / SETS[name]
    if not file.exists():
        pytest.skip(f"{file} is not there")
    rows = convert(registry.dataset(name), [file])
    assert len(rows) == registry.dataset(name).count
    keys = ("tests", "entry_point", "setup", "signature")
    slow = registry.dataset(name).code.slow
    options = [Options(**{key: row.get(key, "") for key in keys}, seconds=slow.get(row["id"])) for row in rows]
    with CodeGrader(workers=2) as patient:
        outcomes = patient.grade([""] * len(rows), [row["answer"] for row in rows], options)
        trivial = [f"def {o.entry_point}(*_, **__): return []" for o in options]
        solved = patient.grade([""] * len(rows), trivial, options)
    assert [row["id"] for row, o in zip(rows, outcomes, strict=True) if o != "correct"] == []
    assert [row["id"] for row, o in zip(rows, solved, strict=True) if o == "correct"] == []
    changed = [wrong(row["answer"], row["entry_point"]) for row in rows]
    outcomes = grader.grade([""] * len(rows), changed, options)
    assert [row["id"] for row, o in zip(rows, outcomes, strict=True) if o == "correct"] == []
