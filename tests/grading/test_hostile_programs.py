"""Programs that try to get out of the sandbox or to take more than they are given: what happens, and what is left."""

import ctypes
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from policygrain.commands.check import check_study
from policygrain.errors import UserError
from policygrain.grading import Item, open_grader
from policygrain.grading.sandbox import LONGEST_REPLY, Function, TimeLimit, isolation

from ..support.small import small_study
from . import read

pytestmark = pytest.mark.usefixtures("bubblewrap")
MIB = 256
TINY = {"hidden": 32, "heads": 1, "context": 96, "vocabulary": 300}
# Fields: name; lines of a function and how it ends, or between which numbers its value is; or a program and why it
# does not define a function. None does harm if it gets what it tries to get.
HOSTILE = {row["name"]: row for row in read("hostile.jsonl")}


def call(program: str, seconds: float = 1.0) -> Any:
    """What lines of a program return in a sandbox, as a function."""
    program = f"def attempt():\n{textwrap.indent(program, '    ')}"
    with closing(Function(program, "attempt", seconds, MIB)) as attempt:
        return attempt()


@pytest.mark.parametrize("row", HOSTILE.values(), ids=HOSTILE)
def test_it_gets_nothing_beyond_its_limits_and_says_why(row):
    if "ends" in row:
        with pytest.raises((Exception, TimeLimit)) as caught:
            call(row["program"])
        assert re.match(row["ends"], f"{caught.type.__name__}: {caught.value}")
    elif "between" in row:
        low, high = row["between"]
        assert low <= call(row["program"], 20.0) <= high
    else:
        with closing(Function(row["whole"], "f", 1.0, MIB)) as f:
            assert f.failure == row["failure"] and f._process.poll() is not None
            with pytest.raises(RuntimeError, match="has ended"):
                f()


def test_no_server_of_this_machine_is_reached():
    name = f"\0policygrain-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(name)
        local.listen()
        for address, kind in ((tcp.getsockname(), "AF_INET"), (name, "AF_UNIX")):
            with pytest.raises(OSError, match=r"Errno (101|111)"):
                call(f"import socket; socket.socket(socket.{kind}).connect({address!r})")


def test_a_program_that_does_not_read_is_ended():
    program = "import os, time\ndef f(x):\n    os.write(4, b'{\"value\": 1}\\n')\n    time.sleep(60)"
    with closing(Function(program, "f", 0.5, MIB)) as f:
        assert f(0) == 1
        with pytest.raises(TimeLimit):
            f("x" * 10**6)


SUBREAPER = 36  # of prctl: a process that adopts all that its descendants leave


def left(program: str, folder: Path, kill_after: float | None = None) -> set[psutil.Process]:
    """What a Python program leaves running after five seconds at most; it is killed so long after its first line."""
    before = {*psutil.Process().children()}
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(folder)}
    ) as child:
        if kill_after is not None:
            child.stdout.readline()
            time.sleep(kill_after)
            child.kill()
    deadline = time.monotonic() + 5
    while (rest := {*psutil.Process().children()} - before) and time.monotonic() < deadline:
        psutil.wait_procs(rest, 0.01)
    ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)
    assert list(folder.iterdir()) == []
    return rest


ENDS = ["pass", "raise ValueError", *(HOSTILE[n]["program"] for n in ("computes without end", "sends without end"))]
LONG_MESSAGE = f"import os\\nfor _ in range({LONGEST_REPLY >> 16} + 9): os.write(4, b'x' * 65536)\\ndef f(): pass"
# What it does → the program, and after how many seconds its parent is killed, if at all. Starting takes about 20 ms.
KILLED = {
    "ends": (f"[Function(p, 'f', 0.5, 256).close() for p in {ENDS!r}]", [None]),
    "computes": ("Function('while True: pass', 'f', 20.0, 256)", [0.2]),
    "sends": (f"Function('{LONG_MESSAGE}', 'f', 20.0, 256)", [0.2]),
    "is called": ("Function('import time\\ndef f(): time.sleep(60)', 'f', 20.0, 256)()", [0.2]),
    "starts": ("Function('import time; time.sleep(60)', 'f', 20.0, 256)", [0.001, 0.004, 0.008, 0.014, 0.025]),
}


@pytest.mark.parametrize("what", KILLED)
def test_nothing_is_left_when_it_ends_or_its_parent_is_killed_while_it(what, tmp_path):
    call, moments = KILLED[what]
    program = f"from policygrain.grading.sandbox import *; isolation(); print(flush=True); {call}"
    assert not any(left(program, tmp_path, after) for after in moments)


@pytest.mark.parametrize(
    ("bwrap", "says"),
    [(None, "the command bwrap is not installed"), ("echo bwrap: No namespaces >&2; exit 1", "bwrap: No namespaces")],
    ids=["missing", "refused"],
)
def test_without_bubblewrap_no_program_is_run(bwrap, says, tmp_path, monkeypatch):
    """The error says why and how to get it, before anything is spent; problems with answers are graded."""
    if bwrap:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{bwrap}\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = {"problem": "p", "answer": "def f(): pass", "tests": "assert f() is None", "entry_point": "f"}
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(problem | {"id": str(i)}) + "\n" for i in range(5)))
    data = {"root": str(tmp_path), "train": ["own.jsonl"], "train_size": 3, "validation_size": 2}
    isolation.cache_clear()
    with pytest.raises(UserError, match=f"does not work here: {says}.*docs/coding.md.*apt install"):
        check_study(small_study(data=data, model={"tiny": TINY, "warm_start": {"steps": 0}}))
    with pytest.raises(OSError, match=says):
        Function("def f(): pass", "f", 1.0, MIB)
    check_study(small_study())
    assert open_grader("numeric").grade([Item("1/2", "\\boxed{0.5}")]) == ["correct"]


VALUES = [None, True, -3, 2**200, 10**5000, 0.1, "é\n", b"\0\xff", 1 + 2j, [1, [2.5, "x"]], (1, (2,)), {1, 2}]
VALUES += [frozenset({3}), {"a": [1], (1, 2): {}}, range(2, 9, 3), [(1.0, "a"), (2.0, "b")], [], "x" * 10**6]


def test_values_cross_as_they_are():
    with closing(Function("def same(x, *, again=None): return (x, again)", "same", 5.0, MIB)) as same:
        for value in VALUES:
            assert same(value, again=value) == (value, value)
            assert type(same(value)[0]) is type(value)


def test_what_it_raises_is_raised_and_objects_are_opaque():
    program = "import re, collections\ndef grow(a=[]):\n    for i in (1, 2): a.append(i); yield a"
    program += "\ndef f(x): return re.match('a', 'a'), grow(), collections.deque()"
    program += "\ndef g(name): raise __builtins__[name]('why')"
    with closing(Function(program, "f", 5.0, MIB)) as f:
        match, listed, empty = f(0)
        assert bool(match) and match != "a" and list(listed) == [[1], [1, 2]] and not empty
    with closing(Function(program, "g", 5.0, MIB)) as g:
        with pytest.raises(KeyError, match="why"):
            g("KeyError")
        # These would end a loop of a test, the test, or the process that runs it.
        for name in ("StopIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt", "BaseException"):
            with pytest.raises(RuntimeError, match="why"):
                list(map(g, [name]))


def test_the_length_of_a_message_is_limited():
    with closing(Function("def f(n): return 'x' * n", "f", 20.0, 1024)) as f:
        assert len(f(LONGEST_REPLY - 100)) == LONGEST_REPLY - 100
        with pytest.raises(RuntimeError, match="output"):
            f(LONGEST_REPLY)
        assert f.failure == "output"
