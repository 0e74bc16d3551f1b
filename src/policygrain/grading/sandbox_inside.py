"""Entry point inside a sandbox, where `python -c` runs this file: sets its own limits, then serves a function.

It imports the standard library alone. Values cross as JSON, so that reading them executes nothing.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from contextlib import suppress
from types import ModuleType
from typing import Any

NOBODY = 65534
WALL_CLOCK_FACTOR = 3  # by the clock it may take this many times the limit, which is on processor time


class Opaque:
    """An object that stayed in the sandbox; only its truth value is known."""

    def __init__(self, is_true: bool) -> None:
        self.is_true = is_true

    def __bool__(self) -> bool:
        return self.is_true is True


# Of each type that JSON has not: its class, what is sent of a value, and what makes a value of that.
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, hex, lambda digits: int(digits, 16)),  # long integers take long in decimal digits
    "tuple": (tuple, iter, tuple),
    "frozenset": (frozenset, iter, frozenset),
    "set": (set, iter, set),
    "dict": (dict, lambda value: [[*pair] for pair in value.items()], dict),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "complex": (complex, lambda value: str(complex(value)), complex),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda ends: range(*ends)),
    "keys": (KeysView, iter, lambda keys: dict.fromkeys(keys).keys()),
    "items": (ItemsView, iter, lambda pairs: dict(pairs).items()),
    "iterator": ((Iterator, ValuesView), iter, iter),
    "object": (object, bool, Opaque),
}


def encode(value: Any) -> Any:
    """A value of built-in types as JSON; any other object as its truth value."""
    if value is None or isinstance(value, bool | float | str) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, list):
        return [encode(item) for item in value]
    name, plain = next((name, plain) for name, (kind, plain, _) in KINDS.items() if isinstance(value, kind))
    content = plain(value)
    # Item by item: an iterator may change what it has given before.
    return {name: content if isinstance(content, bool | str) else [encode(item) for item in content]}


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return KINDS[name][2](decode(content))


def main() -> None:
    """Execute the program of a job, then call its function once for each further line of standard input."""
    if os.getuid() == 0:  # the kernel does not limit root's processes
        with suppress(OSError):  # root of a user namespace that has no other user is not root for the kernel
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    print(flush=True)  # only then is the job sent: no program runs without a parent that bubblewrap watches
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    job = json.loads(requests.readline() or sys.exit(1))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    # One process with one thread, which writes no files. Limits of the kernel cannot be raised afterwards.
    limits = {"CPU": math.ceil(job["seconds"]), "AS": job["mib"] << 20, "NOFILE": 64, "NPROC": 0, "FSIZE": 0, "CORE": 0}
    for name, most in limits.items():
        what = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))
    signal.setitimer(signal.ITIMER_REAL, WALL_CLOCK_FACTOR * job["seconds"])
    sys.set_int_max_str_digits(0)

    def answer(**content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    module = sys.modules["program"] = ModuleType("program")  # where dataclasses look for names
    namespace = vars(module)
    try:
        exec(compile(job["program"], "<program>", "exec", dont_inherit=True), namespace)
        function = namespace[job["function"]]
    except BaseException as error:
        return answer(failed=type(error).__name__)
    answer(ready=True)
    for line in requests:
        arguments, keywords = decode(json.loads(line))
        try:
            answer(value=encode(function(*arguments, **keywords)))
        except MemoryError:
            return answer(failed="MemoryError")
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
            text, plain = str(error)[:500], all(isinstance(x, str | bytes | int | float | None) for x in error.args)
            answer(raised=kinds[0], text=text, args=encode([*error.args] if plain and len(text) < 500 else [text]))
    return None


if __name__ == "__main__":
    main()
