"""What runs inside a sandbox, in a fresh interpreter: it limits itself, then executes a program that it is given.

`python -I -S -B -c SOURCE FD`, where SOURCE is this file and FD a pipe with a job as JSON. Only the standard library,
and nothing of this package. ``encode`` and ``decode`` are used on both sides: values cross as JSON, so that reading
them executes nothing.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import resource
import struct
import sys
from typing import IO, Any

CLONE_THREAD = 0x00010000
# System calls that a program needs for nothing: (x86_64, aarch64), -1 where an architecture has none.
FORBIDDEN = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "fork": (57, -1),
    "vfork": (58, -1),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "setrlimit": (160, 164),
    "prlimit64": (302, 261),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "reboot": (169, 142),
}
MACHINES = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}  # column, audit architecture, clone
CLONE3 = 435
PLAIN = {bool, str, float, type(None)}  # what JSON gives back as it was; integers may be too long
EPERM, ENOSYS = 1, 38


# ---- values ---------------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """A value of Python's own types as JSON; of another object its type and whether it is true."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    if kind is list:
        # The common large values: JSON's own code writes them without a copy.
        if all(type(item) in PLAIN for item in value):
            return value
        if all(type(item) is tuple and all(type(part) in PLAIN for part in item) for item in value):
            return {"tuples": value}
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, frozenset):
        return {"frozenset": [encode(item) for item in value]}
    if isinstance(value, set):
        return {"set": [encode(item) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, (bool, int, float, str, list)):  # subclasses: as what they are
        kinds: tuple[Any, ...] = (bool, int, float, str, list)
        return encode(next(base for base in kinds if isinstance(value, base))(value))
    if hasattr(value, "__next__"):
        return {"iterator": [encode(item) for item in value]}
    return {"object": [kind.__name__, bool(value)]}


class Opaque:
    """An object that has not left the sandbox: nothing is known but its type and whether it is true."""

    def __init__(self, kind: str, is_true: bool) -> None:
        self.kind, self.is_true = kind, is_true

    def __bool__(self) -> bool:
        return self.is_true

    def __repr__(self) -> str:
        return f"<a {self.kind}>"


def decode(value: Any) -> Any:
    """The value that ``encode`` was given."""
    if isinstance(value, list):
        return value if all(type(item) in PLAIN for item in value) else [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "int":
        return int(content, 16)
    if kind == "tuples":
        return [tuple(item) for item in content]
    if kind == "dict":
        return {decode(k): decode(v) for k, v in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        return complex(*content)
    if kind == "object":
        return Opaque(str(content[0]), content[1] is True)
    if kind == "range":
        return range(*content)
    kinds: dict[str, Any] = {"tuple": tuple, "frozenset": frozenset, "set": set, "iterator": iter}
    return kinds[kind]([decode(item) for item in content])


# ---- limits ---------------------------------------------------------------------------------------------------------


def limit(seconds: float, mib: int) -> None:
    """Processor time, memory, files: limits of the kernel, which cannot be raised afterwards."""
    size = mib * 2**20
    for what, value in (
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_AS, size),
        (resource.RLIMIT_FSIZE, 16 * 2**20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (least, least))


def forbid() -> None:
    """Seccomp: the system calls above fail with EPERM. No other privileges can be gained."""
    column, architecture, clone = MACHINES[platform.machine()]
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
    deny = (0x06, 0, 0, 0x00050000 | EPERM)
    if column == 0:
        program += [(0x35, 0, 1, 0x40000000), deny]  # the x32 numbers of x86_64
    for numbers in FORBIDDEN.values():
        if numbers[column] >= 0:
            program += [(0x15, 0, 1, numbers[column]), deny]
    program += [(0x15, 0, 1, CLONE3), (0x06, 0, 0, 0x00050000 | ENOSYS)]  # the C library then takes clone
    # clone without CLONE_THREAD makes a process.
    program += [(0x15, 0, 3, clone), (0x20, 0, 0, 16), (0x45, 1, 0, CLONE_THREAD), deny]
    program += [(0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def fence(readable: list[str]) -> None:
    """Landlock: files can be read below ``readable`` alone, and none can be written. OSError if it is not there."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(*arguments: Any) -> int:
        found: int = libc.syscall(*arguments)
        if found < 0:
            raise OSError(ctypes.get_errno(), "Landlock")
        return found

    version = call(444, None, 0, 1)
    rights = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    handled = [rights] + ([3] if version >= 4 else []) + ([3] if version >= 6 else [])
    attributes = struct.pack(f"{len(handled)}Q", *handled)
    rules = call(444, ctypes.c_char_p(attributes), len(attributes), 0)
    for path in readable:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = 0b1101 if os.path.isdir(path) else 0b0100  # execute, read files, list folders
        allowed |= 0b0010 if path == os.devnull else 0
        rule = struct.pack("=Qi", allowed, handle)
        call(445, rules, 1, ctypes.c_char_p(rule), 0)
        os.close(handle)
    if libc.prctl(38, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    call(446, rules, 0)
    os.close(rules)


# ---- work -----------------------------------------------------------------------------------------------------------


def serve(program: str, name: str, requests: IO[str], replies: IO[str]) -> None:
    """Execute the program, then call its function ``name`` as often as it is asked to, over two pipes."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    namespace: dict[str, Any] = {"__name__": "program"}

    def answer(content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    try:
        exec(compile(program, "<program>", "exec"), namespace)
        function = namespace[name]
    except SyntaxError as error:
        return answer({"failed": "syntax", "text": str(error)[:500]})
    except MemoryError:
        return answer({"failed": "memory"})
    except BaseException as error:
        return answer({"failed": "raised", "text": f"{type(error).__name__}: {error}"[:500]})
    answer({"ready": True})
    for line in requests:
        arguments, keywords = (decode(part) for part in json.loads(line))
        try:
            answer({"value": encode(function(*arguments, **keywords))})
        except MemoryError:
            return answer({"failed": "memory"})
        except BaseException as error:
            answer({"raised": type(error).__name__, "text": str(error)[:500]})
    return None


def main(handle: int) -> None:
    """Read the job, give up all rights, and run the program."""
    with os.fdopen(handle, encoding="utf-8") as file:
        job = json.load(file)
    limit(job["seconds"], job["mib"])
    if job["readable"] is not None:
        fence(job["readable"])
    forbid()
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    if job["function"] is None:
        exec(compile(job["program"], "<program>", "exec"), {"__name__": "__main__"})
    else:
        requests = os.fdopen(os.dup(0), encoding="utf-8")
        replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
        serve(job["program"], job["function"], requests, replies)


if __name__ == "__main__":
    main(int(sys.argv[1]))
