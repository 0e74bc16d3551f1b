"""Checks of the tests of a user's own problems: what is wrong with them is said before a program is graded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.grading import CodeGrader, Options
from policygrain.tasks.golds import check_golds

pytestmark = pytest.mark.usefixtures("bubblewrap")
TWICE = "def f(x): return 2 * x"
# What is said of (tests, solution); nothing of the first ones.
SAID: dict[str, tuple[str, str, str]] = {
    "asserts": ("assert f(2) == 4\nassert f(3) == 6", TWICE, ""),
    "a check": ("def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6", TWICE, ""),
    "no solution": ("assert f(2) == 4\nassert f(3) == 6", "", ""),
    "a generator": ("assert list(f(3)) == [0, 1, 2]", "def f(x): yield from range(x)", ""),
    "an exception": (
        "try: f(-1)\nexcept ValueError: pass\nelse: assert False\nassert f(9) == 3",
        "def f(x): return int(x ** 0.5) if x >= 0 else int('-')",
        "",
    ),
    "a function that nobody calls": ("def test_f():\n    assert f(2) == 4", TWICE, "never call `f`. Call it in"),
    "a TestCase": ("import unittest\nclass T(unittest.TestCase):\n    def test(self): f(2)", TWICE, "never call `f`"),
    "METADATA": ("METADATA = {}", "", "never call `f`"),
    "a module that is not there": ("import no_such\nassert f(2) == 4", TWICE, "line 1 of its tests (`import no_such`)"),
    "no Python": ("assert f(2) ==", TWICE, "fail before they call `f`: line 1 of its tests (`assert f(2) ==`)"),
    "unittest.main": ("import unittest\nunittest.main(argv=['x'])", TWICE, "SystemExit"),
    "sys.exit": ("assert f(2) == 4\nimport sys\nsys.exit(0)", TWICE, "line 3 of its tests (`sys.exit(0)`): SystemExit"),
    "os._exit": ("assert f(2) == 4\nimport os\nos._exit(0)", TWICE, "its tests end their process"),
    "no assertion": ("f(2)", TWICE, "only `return None` passes its tests"),
    "exceptions are caught": ("try:\n    assert f(2) == 4\nexcept Exception: pass", TWICE, "`return None` passes"),
    "NaN": ("assert not abs(f(2) - 4) > 1e-6", TWICE, "only `return float('nan')` passes"),
    "allclose": ("import numpy\nassert numpy.allclose(f(2), [4.0])", "def f(x): return [4.0]", "`return []` passes"),
    "Fraction": (
        "from fractions import Fraction\nassert f(2) == Fraction(1, 2)",
        "from fractions import Fraction\ndef f(x): return Fraction(1, x)",
        "(`assert f(2) == Fraction(1, 2)`): AssertionError (its solution returns a value of type Fraction",
    ),
    "deque in a list": (
        "from collections import deque\nassert f(2) == [deque([2])]",
        "from collections import deque\ndef f(x): return [deque([x])]",
        "returns a value of type deque",
    ),
    "a returned function": ("assert f(2)(3) == 5", "def f(x): return lambda y: x + y", "a value of type function"),
    "an instance": ("assert f(2).x == 2", "class f:\n    def __init__(self, x): self.x = x", "a value of type f,"),
    "a given function": (
        "assert f(abs, -2) == 2",
        "def f(g, x): return g(x)",
        "its tests give the function a value of",
    ),
    "in place": ("a = [2, 1]\nf(a)\nassert a == [1, 2]", "def f(a): a.sort()", "its solution changes its arguments"),
    "a module that programs lack": ("assert f(2) == 4", f"import numpy\n{TWICE}", "No module named 'numpy'"),
    "a solution that is no Python": ("assert f(2) == 4", "def f(x): return (", "cannot be run: SyntaxError"),
    "a solution of another name": ("assert f(2) == 4", "def g(x): return 4", "no program that defines `f`"),
    "a wrong solution": ("assert f(2) == 4\nassert f(3) == 7", TWICE, "line 2 of its tests (`assert f(3) == 7`)"),
    "a slow solution": ("assert f(2) == 4", "def f(x):\n    while True: pass", "more than 1 s of processor time"),
    "a large solution": ("assert f(2) == 4", "def f(x): return len(bytes(10**10))", "more than 256 MiB"),
    "a solution that ends": ("assert f(2) == 4", "import os\ndef f(x): os._exit(0)", "ends its process"),
    "tests that do not end": ("assert f(2) == 4\nwhile True: pass", TWICE, "its tests do not end in time"),
}


def test_what_is_wrong_with_tests_is_said() -> None:
    with CodeGrader(workers=2, seconds=1.0, mib=256) as grader:
        options = [Options(tests=tests, entry_point="f") for tests, _, _ in SAID.values()]
        found = grader.faults([solution for _, solution, _ in SAID.values()], options)
    wrong = {
        name: fault
        for (name, (_, _, said)), fault in zip(SAID.items(), found, strict=True)
        if said not in fault or bool(said) != bool(fault)
    }
    assert wrong == {}


def test_problems_with_wrong_tests_are_named_before_anything_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `data check`, and by the check that comes before training."""

    def row(name: str) -> dict[str, str]:
        tests, solution, _ = SAID[name]
        return {"problem": name, "tests": tests, "entry_point": "f"} | ({"answer": solution} if solution else {})

    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row(name)) + "\n" for name in ("asserts", "no solution")))
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    path.write_text("".join(json.dumps(row(name)) + "\n" for name in ("asserts", "METADATA", "NaN")))
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "own.jsonl: own-00002: its tests never call `f`" in said and "own-00003: a program that" in said
    with pytest.raises(UserError, match="own-00002: its tests never call `f`"):
        check_golds([path], "numeric")
