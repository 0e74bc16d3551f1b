"""Programs that try to get out, with each way of keeping them in: what happens to them, and that nothing is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from policygrain.errors import UserError
from policygrain.sandbox import Function, Isolation, TimeLimit, isolation, run_untrusted
from policygrain.sandbox.probe import VARIABLE, why_not
from policygrain.sandbox.process import LONGEST_PROGRAM, _Started, run_with


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request: pytest.FixtureRequest) -> Isolation:
    found: Isolation = request.param
    if (reason := why_not(found)) is not None:
        pytest.skip(f"{found}: {reason}")
    return found


DENIED = ("PermissionError", "FileNotFoundError")
# Program → how it ends, and one of these in what it says.
HOSTILE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "open a socket": ("import socket; socket.socket()", "failed", DENIED),
    "read passwords": ("open('/etc/passwd')", "failed", DENIED),
    "write outside": ("open('/var/tmp/policygrain-hacked', 'w').write('x')", "failed", DENIED),
    "fork without end": ("import os\nwhile True: os.fork()", "failed", DENIED),
    "start a program": ("import subprocess; subprocess.run(['ls'])", "failed", DENIED),
    "kill the parent": ("import os; os.kill(os.getppid(), 9)", "failed", DENIED),
    "kill everything": ("import os; os.kill(-1, 9)", "failed", DENIED),
    "raise its limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "failed",
        ("ValueError", "PermissionError"),
    ),
    "fill the disk": (
        "for i in range(9): open(f'/tmp/{i}', 'wb').write(bytes(10**7))",
        "failed",
        ("OSError", "PermissionError"),
    ),
    "allocate": ("x = [bytearray(10**8) for _ in range(99)]", "memory", ("MemoryError",)),
    "threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "failed",
        ("can't start new thread",),
    ),
    "write without end": ("while True: print('x' * 1000)", "output", ("",)),
    "recurse without end": ("def f(): f()\nf()", "failed", ("RecursionError",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_each_ends_with_its_own_outcome(name: str, kind: Isolation) -> None:
    program, ended, says = HOSTILE[name]
    ran = run_with(kind, program, "", seconds=2.0, mib=256)
    assert ran.ended == ended, ran.stderr
    last = (ran.stderr.strip().splitlines() or [""])[-1]
    assert any(word in last for word in says), ran.stderr
    assert not Path("/var/tmp/policygrain-hacked").exists()


@pytest.mark.parametrize("program", ["import time; time.sleep(60)", "while True: pass"])
def test_time_is_limited(program: str, kind: Isolation) -> None:
    began = time.monotonic()
    assert run_with(kind, program, "", seconds=1.0, mib=256).ended == "timeout"
    assert time.monotonic() - began < 10


def test_the_studys_own_records_cannot_be_read(kind: Isolation, tmp_path: Path) -> None:
    secret = tmp_path / "answers.json"
    secret.write_text("42")
    ran = run_with(kind, f"print(open({str(secret)!r}).read())", "", 2.0, 256)
    assert ran.ended == "failed" and "42" not in ran.stdout


def test_it_has_no_environment_and_knows_no_process(kind: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "42")
    look = f"try:\n    print(os.listdir('/proc/{os.getpid()}'))\nexcept OSError: print('no')"
    ran = run_with(kind, f"import os; print(sorted(os.environ), os.listdir('.'))\n{look}", "", 2.0, 256)
    assert "SECRET" not in ran.stdout and ran.stdout.endswith("[]\nno\n")


def test_nothing_that_it_started_is_left(kind: Isolation) -> None:
    """The process, and under bubblewrap those that it started to keep the program apart."""
    with _Started(kind, "while True: pass", None, 9.0, 256) as started:
        time.sleep(0.5)
        running = descendants(started.process.pid)
        assert len(running) == (3 if kind == "bubblewrap" else 1)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(map(is_running, running)):
        time.sleep(0.05)
    assert not any(map(is_running, running))


def descendants(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for number in found:
        for children in Path(f"/proc/{number}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_that_does_no_harm_runs(kind: Isolation) -> None:
    program = "import sys, math\nprint(sum(int(x) for x in sys.stdin.read().split()), math.pi > 3)"
    ran = run_with(kind, program, "1 2\n3", 2.0, 256)
    assert (ran.ended, ran.stdout, ran.isolation) == ("finished", "6 True\n", kind)
    assert run_with(kind, "raise SystemExit(3)", "", 2.0, 256).ended == "failed"
    assert run_with(kind, "x" * (LONGEST_PROGRAM + 1), "", 2.0, 256).ended == "too_long"


def test_the_first_way_that_works_is_taken_and_one_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("bubblewrap", "landlock"):
        if why_not(wanted) is None:
            isolation.cache_clear()
            monkeypatch.setenv(VARIABLE, wanted)
            assert isolation() == wanted == run_untrusted("pass").isolation
    isolation.cache_clear()
    monkeypatch.setenv(VARIABLE, "docker")
    with pytest.raises(UserError, match="'docker' is not 'bubblewrap' or 'landlock'"):
        isolation()
    isolation.cache_clear()


def test_without_a_way_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """bwrap is not there: with no other way allowed it is an error that says so, and never a plain process."""
    isolation.cache_clear()
    monkeypatch.setenv(VARIABLE, "bubblewrap")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"none is run\. bubblewrap: the command bwrap is not installed"):
        run_untrusted("pass")
    isolation.cache_clear()


# ---- functions ------------------------------------------------------------------------------------------------------

VALUES = [
    None,
    True,
    -3,
    2**200,
    0.1,
    "é\n",
    b"\0\xff",
    1 + 2j,
    [1, [2.5, "x"]],
    (1, (2,)),
    {1, 2},
    frozenset({3}),
    {"a": [1], (1, 2): {}},
    range(2, 9, 3),
    [(1.0, "a"), (2.0, "b")],
    [True, None, "x"],
    [],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_cross_as_they_are(value: object, kind: Isolation) -> None:
    with Function(kind, "def same(x, *, again=None): return (x, again)", "same", 2.0, 256) as same:
        assert same.failure is None
        assert same(value, again=value) == (value, value)
        assert type(same(value)[0]) is type(value)


def test_what_it_raises_is_raised_and_objects_are_opaque(kind: Isolation) -> None:
    program = "import re\ndef f(x):\n    if x: raise KeyError(x)\n    return re.match('a', 'a'), iter([1, 2])"
    with Function(kind, program, "f", 2.0, 256) as f:
        with pytest.raises(KeyError, match="why"):
            f("why")
        match, listed = f(0)
        assert bool(match) and match != "a" and list(listed) == [1, 2]


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("def f(x: return", "syntax"),
        ("raise ValueError", "raised"),
        ("g = 1", "raised"),
        ("import os; os._exit(0)", "ended"),
        ("while True: pass", "timeout"),
        ("x = bytearray(10**10)", "memory"),
        ("#" * (LONGEST_PROGRAM + 1), "too_long"),
    ],
)
def test_a_program_without_the_function_says_why(program: str, failure: str, kind: Isolation) -> None:
    with Function(kind, program, "f", 1.0, 256) as f:
        assert f.failure == failure
        with pytest.raises(RuntimeError, match="has ended"):
            f()


def test_a_call_that_does_not_return_is_ended(kind: Isolation) -> None:
    with Function(kind, "def f():\n    while True: pass", "f", 1.0, 256) as f, pytest.raises(TimeLimit):
        f()
