"""Isolation of a fresh interpreter by bubblewrap: its command line and its allowed system calls."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import struct
import sys
from pathlib import Path

INSIDE = Path(__file__).with_name("sandbox_inside.py")


def interpreter() -> Path:
    """The interpreter that runs programs: the one of this process, outside of any virtual environment."""
    return Path(sys._base_executable).resolve()  # type: ignore[attr-defined]


def readable() -> list[str]:
    """Folders that an interpreter needs: its own `bin` and `lib`, and system libraries; not all of its prefix."""
    prefixes = dict.fromkeys([sys.base_prefix, str(interpreter().parent.parent)])
    folders = [f"{prefix}/{part}" for prefix in prefixes for part in ("bin", "lib", "lib64")]
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]
    return [path for path in dict.fromkeys([*folders, *system]) if os.path.isdir(path)]


def bwrap() -> str | None:
    """Path of the `bwrap` command: on PATH, or next to this interpreter (conda)."""
    return shutil.which(
        "bwrap", path=os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    )


@functools.cache
def arguments() -> list[str]:
    """The arguments of bubblewrap, without the filter of system calls, and the interpreter's command."""
    bound: list[str] = []
    for path in readable():
        bound += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    # No mount is writable: files written there would not count as memory of the program.
    bound += ["--dev-bind", os.devnull, os.devnull, "--remount-ro", "/", "--chdir", "/"]
    # `--unshare-all` alone continues without a user namespace where none is allowed.
    alone = ["--unshare-user", "--unshare-all", "--die-with-parent"]
    nobody = ["--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"]
    source = INSIDE.read_text(encoding="utf-8")
    return [*alone, *nobody, *bound, "--", str(interpreter()), "-I", "-S", "-B", "-c", source]


def command(filter_handle: int) -> list[str]:
    """The command line of a fresh interpreter under the filter that can be read from ``filter_handle``."""
    return [bwrap() or "bwrap", "--seccomp", str(filter_handle), *arguments()]


# ---- the system calls that a program can make, as a filter of the kernel (seccomp); all others fail ------------------

# Enough for an interpreter with one thread that computes and reads files. Not here: everything that makes a process, a
# thread, a file, a pipe, a socket, shared memory, a timer or a lock of a file, that changes another process or a file,
# that sends a signal, or that needs a privilege. Calls that are added to Linux later are not here either.
# NAME:number on x86_64:number on aarch64, -1 where it has none.
ALLOWED = """
read:0:63 readv:19:65 pread64:17:67 write:1:64 writev:20:66 lseek:8:62 close:3:57 dup:32:23 dup2:33:-1 dup3:292:24
open:2:-1 openat:257:56 access:21:-1 faccessat:269:48 faccessat2:439:439 stat:4:-1 lstat:6:-1 fstat:5:80
newfstatat:262:79 statx:332:291 getdents64:217:61 readlink:89:-1 readlinkat:267:78 getcwd:79:17 fcntl:72:25 ioctl:16:29
poll:7:-1 ppoll:271:73 select:23:-1 pselect6:270:72
mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 brk:12:214
futex:202:98 set_tid_address:218:96 set_robust_list:273:99 rseq:334:293 arch_prctl:158:-1 membarrier:324:283
sched_yield:24:124 sched_getaffinity:204:123
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 sigaltstack:131:132 restart_syscall:219:128
alarm:37:-1 setitimer:38:103 getitimer:36:102 pause:34:-1
clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:-1 nanosleep:35:101 clock_nanosleep:230:115
times:100:153 getrusage:98:165 getrandom:318:278 uname:63:160 sysinfo:99:179
getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177
getrlimit:97:163 prlimit64:302:261 execve:59:221 wait4:61:260 exit:60:93 exit_group:231:94
"""
# These are allowed only with these second arguments: flags and copies of handles (fcntl), the kind of a file (ioctl).
COMMANDS = {"fcntl": (0, 1, 2, 3, 4, 1030), "ioctl": (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)}
MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column in ALLOWED, AUDIT_ARCH of the kernel

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of the filter (BPF)
NUMBER, ARCHITECTURE, SECOND = 0, 4, 24  # byte offsets in the kernel's `seccomp_data`
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000 | errno.ENOSYS


def numbers(machine: str) -> dict[str, int]:
    """The number of each call that is allowed."""
    column, _ = MACHINES[machine]
    calls = [entry.split(":") for entry in ALLOWED.split()]
    return {call[0]: int(call[column]) for call in calls if call[column] != "-1"}


def rules(machine: str) -> bytes:
    """The filter for a kind of processor, as bubblewrap reads it. KeyError for one that is not in MACHINES."""
    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, MACHINES[machine][1]), (RETURN, 0, 0, KILL)]
    program += [(LOAD, 0, 0, NUMBER)]
    for name, number in numbers(machine).items():
        if (commands := COMMANDS.get(name)) is None:
            program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
        else:
            program += [(EQUAL, 0, 2 * len(commands) + 2, number), (LOAD, 0, 0, SECOND)]
            for command in commands:
                program += [(EQUAL, 0, 1, command), (RETURN, 0, 0, ALLOW)]
            program += [(RETURN, 0, 0, FAIL)]
    return b"".join(struct.pack("HBBI", *line) for line in [*program, (RETURN, 0, 0, FAIL)])
