"""Programs that try to get out of the sandbox or to take more than they are given: what happens, and what is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policygrain.commands.check import check_study
from policygrain.errors import UserError
from policygrain.grading import open_grader
from policygrain.grading import sandbox as process
from policygrain.grading.sandbox import LONGEST_PROGRAM, LONGEST_REPLY, Function, TimeLimit, isolation
from policygrain.grading.sandbox_isolation import MACHINES, numbers

from ..support.small import small_study

pytestmark = pytest.mark.usefixtures("bubblewrap")
MIB = 256
# A page of the program's own machine code.
MACHINE = "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\n{}ctypes.CFUNCTYPE(ctypes.c_long)(\
ctypes.addressof(ctypes.c_char.from_buffer(page)))()"
LIBRARY = "import os\nfile = os.__file__\nfolder = os.path.dirname(file)\n"

# Each of these must fail: one that finishes has got something that it must not have. None does harm if it gets it.
# Files that are not there or cannot be written: "no such file", "permission denied" (to others than root), "no folder",
# "read-only file system".
FILES = {
    "read passwords": "open('/etc/passwd')",
    "read the home folder": "import os; os.listdir('/home')",
    "read temporary files": "import os; os.listdir('/tmp')",
    "read memory of the machine": "open('/dev/mem', 'rb')",
    "read a disk": "open('/dev/sda', 'rb')",
    "read a random device": "open('/dev/random', 'rb')",
    "read the environment of its parent": "import os; open(f'/proc/{os.getppid()}/environ')",
    "read its own process": "open('/proc/self/maps')",
    "read the machine's settings": "open('/sys/kernel/uevent_seqnum')",
    "climb out of its root": "open('/../../../../etc/passwd')",
    "write to the library": LIBRARY + "open(file, 'a')",
    "write beside the library": LIBRARY + "open(folder + '/policygrain_hacked.py', 'w')",
    "a file without a name": LIBRARY + "os.open(folder, os.O_TMPFILE | os.O_RDWR)",
    "shared memory": "from multiprocessing import shared_memory; shared_memory.SharedMemory('x', True, 4096)",
}
# System calls that are refused, one of each kind, and calls that are allowed with other arguments.
REFUSED = {
    "open a socket": "import socket; socket.socket()",
    "lock a part of a file": LIBRARY + "import fcntl; fcntl.lockf(os.open(file, 0), fcntl.LOCK_SH)",
    "lease a file": LIBRARY + "import fcntl; fcntl.fcntl(os.open(file, 0), 1024, 0)",
    "change flags of a file": LIBRARY + "import fcntl; fcntl.ioctl(os.open(file, 0), 0x40086602, bytes(8))",
    "a larger pipe": "import fcntl; fcntl.fcntl(1, 1031, 1 << 20)",
    "delete a file": LIBRARY + "os.unlink(file + '-')",
    "fork without end": "import os\nwhile True: os.fork()",
    "start a program by a shell": "import os\nif os.system('true'): raise OSError(38, 'refused')",
    "threads without end": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
    "kill everything": "import os; os.kill(-1, 0)",
    "become root": "import os; os.setuid(0)",
    "a file in memory": "import os; os.memfd_create('x')",
}
# None of these may be among the calls that are allowed: network, processes, changes of files, privileges, settings of
# the machine, and objects of the kernel with memory that no limit counts.
NEVER_ALLOWED = """
socket socketpair bind connect fork vfork clone clone3 kill tkill tgkill rt_sigqueueinfo ptrace process_vm_readv
pidfd_open setsid prctl sched_setaffinity sched_setscheduler setpriority ioprio_set mkdir mkdirat link linkat symlink
symlinkat mknod mknodat unlink unlinkat rename renameat renameat2 truncate ftruncate chmod fchmod chown utime utimensat
setxattr flock setuid setgid unshare setns mount umount2 fsopen open_tree pivot_root chroot open_by_handle_at
clock_settime sethostname reboot syslog init_module finit_module bpf perf_event_open userfaultfd io_uring_setup seccomp
personality keyctl memfd_create memfd_secret shmget mq_open msgget semget pipe pipe2 eventfd eventfd2 epoll_create
epoll_create1 inotify_init inotify_init1 timer_create landlock_create_ruleset
"""
# Limits, by which an interpreter ends with an error of its own.
BEYOND = {
    "raise its time": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
    "raise its memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "raise its open files": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "open files without end": "import os\nkept = [os.open('/dev/null', 0) for _ in range(10**6)]",
    "recurse without end": "def f(): f()\nf()",
    "system calls of 32 bits": MACHINE.format(r"page.write(b'\xb8\x14\0\0\0\xcd\x80\xc3');"),
}
ENDS_WITH = {
    **dict.fromkeys(FILES, r"\w+Error: \[Errno (2|13|20|30)\]"),
    **dict.fromkeys(REFUSED, r"OSError: \[Errno 38\]|RuntimeError: can't start new thread"),
    **dict.fromkeys(BEYOND, r"ValueError: not allowed to raise|OSError: \[Errno 24\]|RecursionError|.*has ended"),
}
HOSTILE = {**FILES, **REFUSED, **BEYOND}


def call(program: str, seconds: float = 5.0) -> Any:
    """What lines of a program return in a sandbox, as a function."""
    with Function(f"def attempt():\n{textwrap.indent(program, '    ')}", "attempt", seconds, MIB) as attempt:
        return attempt()


@pytest.mark.parametrize("name", HOSTILE)
def test_it_gets_nothing(name: str) -> None:
    with pytest.raises((OSError, ValueError, RuntimeError)) as caught:
        call(HOSTILE[name])
    assert re.match(ENDS_WITH[name], f"{caught.type.__name__}: {caught.value}")


def test_another_program_in_its_place_has_its_limits() -> None:
    """It replaces itself by an interpreter that forks, whose error it sends as its value."""
    other = "import os\ntry: os.fork()\nexcept OSError as e: os.write(4, b'{\"value\": %d}\\n' % e.errno)"
    arguments = f"[sys.executable, '-I', '-S', '-c', {other!r}]"
    assert call(f"import os, sys\nos.set_inheritable(4, True)\nos.execv(sys.executable, {arguments})") == 38


@pytest.mark.parametrize("machine", MACHINES)
def test_dangerous_system_calls_are_not_allowed(machine: str) -> None:
    assert not set(numbers(machine)) & set(NEVER_ALLOWED.split())


def test_every_other_system_call_is_refused() -> None:
    """All numbers below 1,024 that are not in the list, and those of x32; a call that is new to Linux is among them.

    Without 335 and 336 of x86_64, which Linux never filters: they end a program that it does not trace itself.
    """
    allowed = sorted([335, 336, *numbers(os.uname().machine).values()])
    program = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in range(1024):
    for call in {{number, number | 0x40000000}} - set({allowed}):
        ctypes.set_errno(0)
        if libc.syscall(ctypes.c_long(call), 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38:
            return call, ctypes.get_errno()
"""
    assert call(program) is None


def test_no_file_of_its_machine_can_be_written() -> None:
    """Every folder that it sees up to the third level is tried, and a file in each."""
    program = """
import os
tried, todo = 0, ['/']
while todo:
    folder, folders, names = next(os.walk(todo.pop()))
    todo += [f'{folder}/{name}' for name in folders if folder.count('/') < 3]
    for name, flags in [('policygrain-hacked', os.O_WRONLY | os.O_CREAT), *[(n, os.O_WRONLY) for n in names[:1]]]:
        try:
            os.open(os.path.join(folder, name), flags)
            if (folder, name) != ('//dev', 'null'): return folder, name
        except OSError: tried += 1
return tried
"""
    assert call(program, seconds=20.0) > 100


def test_all_memory_together_stays_within_the_limit() -> None:
    """Memory of its own, files wherever it can make one, and every object of the kernel that holds pages."""
    program = """
import mmap, os, fcntl
BLOCK = bytes(1 << 20)
kept, taken = [], 0
def file_in(folder):
    def fill():
        kept.append(None)
        with open(f'{folder}/policygrain-{len(kept)}', 'wb') as file:
            return file.write(BLOCK)
    return fill
def memory_file():
    def fill():
        kept.append(os.memfd_create('x'))
        return os.write(kept[-1], BLOCK)
    return fill
def pipe():
    def fill():
        ends = os.pipe()
        kept.append(ends)
        fcntl.fcntl(ends[1], 1031, 1 << 20)
        os.write(ends[1], BLOCK)
        return 1 << 20
    return fill
def shared():
    def fill():
        kept.append(mmap.mmap(-1, 1 << 20))
        return kept[-1].write(BLOCK)
    return fill
def own():
    def fill():
        kept.append(bytearray(BLOCK))
        return 1 << 20
    return fill
for way, *arguments in [(file_in, '/'), (file_in, '/tmp'), (file_in, '/dev'), (file_in, '/dev/shm'), (memory_file,),
                        (pipe,), (shared,), (own,)]:
    try:
        fill = way(*arguments)
        for _ in range(600): taken += fill()
    except (OSError, MemoryError): pass
kept.clear()
return taken >> 20
"""
    assert MIB / 2 < call(program, seconds=20.0) <= MIB


# How the others end: not by an error, but by a limit.
LIMITED = {
    "sleep": ("import time; time.sleep(60)", TimeLimit),
    "compute without end": ("while True: pass", TimeLimit),
    "ignore signals": (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, lambda *_: None)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        TimeLimit,
    ),
    "a regular expression without end": ("import re; re.match('(a+)+$', 'a' * 40 + 'b')", TimeLimit),
    "allocate": ("x = [bytearray(10**8) for _ in range(99)]", MemoryError),
    "send without end": ("import os\nwhile True: os.write(4, b'x' * 65536)", RuntimeError),
    "crash": ("import ctypes; ctypes.string_at(0)", RuntimeError),
    "leave at once": ("import os; os._exit(3)", RuntimeError),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITED)
def test_it_ends_by_its_limit(name: str) -> None:
    program, ended = LIMITED[name]
    began = time.monotonic()
    with pytest.raises(ended):
        call(program, seconds=1.0)
    assert time.monotonic() - began < 10


def test_a_program_that_does_not_read_is_ended() -> None:
    program = "import os, time\ndef f(x):\n    os.write(4, b'{\"value\": 1}\\n')\n    time.sleep(60)"
    with Function(program, "f", 0.5, MIB) as f:
        assert f(0) == 1
        with pytest.raises(TimeLimit):
            f("x" * 10**6)


def test_it_has_no_environment_and_knows_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "42")
    seen = call("import os; return sorted(os.environ), os.getpid(), os.getppid(), os.listdir('/dev')")
    assert seen == (["LC_CTYPE", "PWD"], 2, 1, ["null"])


# ---- what is left ---------------------------------------------------------------------------------------------------

ENDS = {
    "normally": "pass",
    "by an error": "raise ValueError",
    "by its time": "while True: pass",
    "by the time of the clock": "import time; time.sleep(60)",
    "by its memory": "x = bytearray(10**10)",
    "by its output": "import os\nwhile True: os.write(4, b'x' * 65536)",
    "as a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}
# A process that adopts all that its descendants leave, and says how many of those still run after five seconds at most.
KEEPER = """
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
if len(sys.argv) > 2:
    child.stdout.readline()
    time.sleep(float(sys.argv[2]))
    child.kill()
child.wait()
deadline = time.monotonic() + 5
try:
    while time.monotonic() < deadline:
        os.waitpid(-1, os.WNOHANG)
        time.sleep(0.01)
    print(open(f'/proc/self/task/{os.getpid()}/children').read())
    os.killpg(0, signal.SIGKILL)
except ChildProcessError:
    print('none')
"""


def left(program: str, folder: Path, *kill_after: float) -> str:
    """What a Python program leaves running, `none` at best; it is killed so long after its first line, if at all."""
    ran = subprocess.run(
        [sys.executable, "-c", KEEPER, program, *map(str, kill_after)],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )
    return ran.stdout.strip()


@pytest.mark.parametrize("how", ENDS)
def test_nothing_is_left_of_one_that_ends(how: str, tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    program = f"from policygrain.grading.sandbox import Function; Function({ENDS[how]!r}, 'f', 0.5, 256)"
    assert left(program, tmp_path) == "none"
    assert list(tmp_path.iterdir()) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts


LONG_MESSAGE = f"import os\\nfor _ in range({LONGEST_REPLY >> 16} + 9): os.write(4, b'x' * 65536)\\ndef f(): pass"
KILLED = {
    "while it computes": "Function('while True: pass', 'f', 20.0, 256)",
    "while it sends": f"Function('{LONG_MESSAGE}', 'f', 20.0, 256)",
    "while it is called": "Function('import time\\ndef f(): time.sleep(60)', 'f', 20.0, 256)()",
}


@pytest.mark.parametrize("what", KILLED)
@pytest.mark.parametrize("after", [0.0, 0.3])
def test_nothing_is_left_when_its_parent_is_killed(what: str, after: float, tmp_path: Path) -> None:
    program = f"from policygrain.grading.sandbox import *; isolation(); print(flush=True); {KILLED[what]}"
    assert left(program, tmp_path, after) == "none"
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_its_parent_is_killed_while_it_starts(tmp_path: Path) -> None:
    """Starting takes about 20 ms: kills at moments of that time, before and after bubblewrap is bound to its parent."""
    sleep = "Function('import time; time.sleep(60)', 'f', 20.0, 256)"
    program = f"from policygrain.grading.sandbox import Function; print(flush=True); {sleep}"
    assert {left(program, tmp_path, after / 1000) for after in range(1, 31, 3)} == {"none"}


def test_a_program_that_never_had_a_parent_does_not_run() -> None:
    """The job is sent when the sandbox says that it is there; without one it ends by itself."""
    sandbox = process.Sandbox(5.0)
    sandbox.stdin.close()
    assert sandbox.process.wait(5.0) == 1
    sandbox.end()


# ---- ordinary programs ----------------------------------------------------------------------------------------------


def test_modules_that_solutions_import_can_be_imported() -> None:
    names = "array bisect cmath collections copy dataclasses datetime decimal enum fractions functools hashlib heapq io"
    names += " itertools json math numbers operator os queue random re statistics string struct sys textwrap threading"
    names += " time timeit typing unicodedata uuid zlib asyncio concurrent.futures multiprocessing subprocess tempfile"
    program = (
        f"import {', '.join(names.split())}\nreturn random.random() < 1, len(uuid.uuid4().hex), os.cpu_count() > 0"
    )
    assert call(program) == (True, 32, True)


@pytest.fixture
def _no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", "/nowhere")
    isolation.cache_clear()
    yield
    isolation.cache_clear()


@pytest.mark.usefixtures("_no_bubblewrap")
def test_without_bubblewrap_no_program_is_run(tmp_path: Path) -> None:
    """The error says how to get it, before anything is spent, and no program is started as a plain process."""
    refused = r"does not work here: the command bwrap is not installed\. .*apt install.*dnf install.*conda-forge"
    with pytest.raises(UserError, match=refused):
        isolation()
    problem = {"problem": "p", "answer": "def f(): pass", "tests": "assert f() is None", "entry_point": "f"}
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(problem | {"id": str(i)}) + "\n" for i in range(5)))
    data = {"root": str(tmp_path), "train": ["own.jsonl"], "train_size": 3, "validation_size": 2}
    tiny = {"hidden": 32, "heads": 1, "context": 96, "vocabulary": 300}
    with pytest.raises(UserError, match=refused):
        check_study(small_study(data=data, model={"tiny": tiny, "warm_start": {"steps": 0}}))


@pytest.mark.usefixtures("_no_bubblewrap")
def test_without_bubblewrap_problems_with_answers_are_graded() -> None:
    check_study(small_study())
    with open_grader("math") as grader:
        assert grader.grade(["1/2"], ["\\boxed{0.5}"]) == ["correct"]


@pytest.mark.needs("namespaces")
def test_where_namespaces_are_forbidden_the_error_has_bubblewraps_message() -> None:
    """As in containers that do not allow them. A program that was to be graded is an error there, not a wrong one."""
    code = "from policygrain.grading.sandbox import *\nfor call in isolation, lambda: Function('def f(): pass', 'f'):\n"
    code += "    try: call()\n    except Exception as error: print(type(error).__name__, error)"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec "
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{forbid} "$@"', "sh", sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    error, failure = ran.stdout.splitlines()
    assert re.match("UserError .* does not work here: bwrap: .*namespace.* docs/coding.md", error)
    assert re.match("OSError bwrap: .*namespace", failure)


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
    "x" * 10**6,
]


def test_values_cross_as_they_are() -> None:
    with Function("def same(x, *, again=None): return (x, again)", "same", 5.0, MIB) as same:
        assert same.failure is None
        for value in VALUES:
            assert same(value, again=value) == (value, value)
            assert type(same(value)[0]) is type(value)


def test_what_it_raises_is_raised_and_objects_are_opaque() -> None:
    program = "import re\ndef f(x):\n    if x: raise x\n    return re.match('a', 'a'), iter([1, 2])"
    program += "\ndef g(name): f(__builtins__[name]('why'))"
    with Function(program, "f", 5.0, MIB) as f:
        match, listed = f(0)
        assert bool(match) and match != "a" and list(listed) == [1, 2]
    with Function(program, "g", 5.0, MIB) as g:
        with pytest.raises(KeyError, match="why"):
            g("KeyError")
        # These would end a loop of a test, the test, or the process that runs it.
        for name in ("StopIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt", "BaseException"):
            with pytest.raises(RuntimeError, match="why"):
                list(map(g, [name]))


FAILURES = {
    "syntax": "def f(x: return",
    "raised": "raise ValueError",
    "ended": "import os; os._exit(0)",
    "timeout": "while True: pass",
    "memory": "x = bytearray(10**10)",
    "too_long": "#" * (LONGEST_PROGRAM + 1),
    "output": "import os\nwhile True: os.write(4, b'x' * 65536)",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_program_without_the_function_says_why(failure: str) -> None:
    with Function(FAILURES[failure], "f", 1.0, MIB) as f:
        assert f.failure == failure
        with pytest.raises(RuntimeError, match="has ended"):
            f()


@pytest.mark.parametrize(
    "sent",
    [
        b"x\n",
        b"[]\n",
        b"\xff\n",
        b"\n",
        b'{"failed": []}\n',
        b"[" * 10**5 + b"\n",
        b'{"failed": "too_long"}\n',
        b'"a"\n',
    ],
)
def test_a_program_that_sends_something_else_has_no_function(sent: bytes) -> None:
    """It ends, whatever reason it gives."""
    with Function(f"import os, time\nos.write(4, {sent!r})\ntime.sleep(9)", "f", 5.0, MIB) as f:
        assert f.failure is not None
        assert f._sandbox is not None and f._sandbox.process.poll() is not None


@pytest.mark.parametrize(
    "sent",
    [
        '{"value": {}}',
        '{"value": {"no": 1}}',
        '{"value": {"set": [[]]}}',
        '{"value": {"range": [1.5]}}',
        '{"value": {"complex": ["x"]}}',
        '{"value": {"object": 1}}',
        '{"value": {"int": 9}}',
        '{"value": ' + "[" * 10**5,
        '{"value": {"dict": [1]}}',
        "{}",
        "[]",
        "x",
    ],
)
def test_a_value_that_is_none_is_an_error_of_the_program(sent: str) -> None:
    with Function(f"import os\ndef f(): os.write(4, {(sent + chr(10)).encode()!r})", "f", 5.0, MIB) as f:
        with pytest.raises(RuntimeError):
            f()
        assert f.failure == "ended"


def test_a_long_message_is_read_once_and_its_length_is_limited() -> None:
    """Reading takes time and memory in proportion to the length."""
    program = "def f(n): return 'x' * n"
    with Function(program, "f", 20.0, 1024) as f:
        began = time.monotonic()
        assert len(f(LONGEST_REPLY - 100)) == LONGEST_REPLY - 100
        assert time.monotonic() - began < 10
        with pytest.raises(RuntimeError, match="output"):
            f(LONGEST_REPLY)
        assert f.failure == "output"
        assert f._sandbox is not None and f._sandbox.process.poll() is not None


def test_the_page_says_how_many_programs_were_tried() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coding.md").read_text(encoding="utf-8")
    assert f"{len(HOSTILE)} programs that must fail" in page and f"{len(LIMITED)} that must be ended" in page
