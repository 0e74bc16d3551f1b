"""Checks of a user's own problems with tests, before anything is spent."""

from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.data.golds import check_golds
from policygrain.errors import UserError

from ..support.files import write_lines

pytestmark = pytest.mark.usefixtures("bubblewrap")
TWICE = "def f(x): return 2 * x"
# What is said of (tests, solution); nothing of the first ones.
SAID: dict[str, tuple[str, str, str]] = {
    "a check": ("def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6", TWICE, ""),
    "no solution": ("assert f(2) == 4\nassert f(3) == 6", "", ""),
    "a function that nobody calls": ("def test_f():\n    assert f(2) == 4", TWICE, "never call `f`. Call it in"),
    "a module that is not there": ("import no_such\nassert f(2) == 4", TWICE, "fail (line 1: ModuleNotFoundError"),
    "unittest.main": ("import unittest\nunittest.main(argv=['x'])", "", "SystemExit"),
    "no assertion": ("f(2)", TWICE, "only `return None` passes its tests"),
    "allclose": ("import numpy\nassert numpy.allclose(f(2), [4.0])", "def f(x): return [4.0]", "`return []` passes"),
    "a wrong solution": ("assert f(2) == 4\nassert f(3) == 7", TWICE, "its solution is graded incorrect"),
    "a module that programs lack": ("assert f(2) == 4", f"import numpy\n{TWICE}", "is graded incorrect. Programs can"),
    "a Fraction": (
        "from fractions import Fraction\nassert f(2) == Fraction(1, 2)",
        "from fractions import Fraction\ndef f(x): return Fraction(1, x)",
        "only copies of values of Python's own types",
    ),
    "a solution of another name": ("assert f(2) == 4", "def g(x): return 4", "its solution is graded unparsable"),
}


def write(path: Path, *names: str) -> None:
    rows = [{"problem": name, "tests": SAID[name][0], "entry_point": "f", "answer": SAID[name][1]} for name in names]
    write_lines(path, [{key: value for key, value in row.items() if value} for row in rows])


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_with_tests_is_said(name, tmp_path):
    write(path := tmp_path / "own.jsonl", name)
    if SAID[name][2]:
        with pytest.raises(UserError) as caught:
            check_golds([path], "numeric")
        assert SAID[name][2] in str(caught.value) and "own.jsonl: own-00001: " in str(caught.value)
    else:
        check_golds([path], "numeric")


def test_the_command_that_checks_data_says_it_too(tmp_path, capsys):
    write(tmp_path / "own.jsonl", "a check", "no assertion", "allclose")
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "own-00002: a program that is only `return None`" in said and "own-00003: a program that" in said
