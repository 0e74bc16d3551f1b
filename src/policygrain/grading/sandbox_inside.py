"""Entry point inside a sandbox, in a fresh interpreter: sets its own limits, then serves the function of a job.

It is started by `python -c SOURCE`, where SOURCE is this file, and imports only the standard library. ``encode`` and
``decode`` are used on both sides: values are sent as JSON, so that reading them executes nothing.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

NOBODY = 65534
# The limit is on processor time, which does not depend on the load; by the clock it may take this many times as long.
WALL_CLOCK_FACTOR = 3


def encode(value: Any) -> Any:
    """A value of built-in types as JSON; any other object as its truth value."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {"int": hex(int(value))}  # long integers take long in decimal digits
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    for base in (tuple, frozenset, set):
        if isinstance(value, base):
            return {base.__name__: [encode(item) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": str(complex(value))}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if hasattr(value, "__next__"):
        return {"iterator": [encode(item) for item in value]}
    return {"object": bool(value)}


class Opaque:
    """An object that stayed in the sandbox; only its truth value is known."""

    def __init__(self, is_true: bool) -> None:
        self.is_true = is_true

    def __bool__(self) -> bool:
        return self.is_true is True


MAKE: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "frozenset": frozenset, "set": set, "dict": dict}
MAKE |= {"iterator": iter, "object": Opaque, "bytes": bytes.fromhex, "complex": complex}
MAKE |= {"range": lambda ends: range(*ends), "int": lambda digits: int(digits, 16)}


def decode(value: Any) -> Any:
    """The value that ``encode`` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return MAKE[kind](decode(content))


def main() -> None:
    """Execute the program of a job, then call its function once for each further line of standard input.

    The parent sends the job after an empty line from here: no program runs without a parent that bubblewrap watches.
    """
    if os.getuid() == 0:  # the kernel does not limit root's processes
        with suppress(OSError):  # root of a user namespace that has no other user is not root for the kernel
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    print(flush=True)
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

    namespace: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(job["program"], "<program>", "exec"), namespace)
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
            answer(raised=type(error).__name__, text=str(error)[:500])
    return None


if __name__ == "__main__":
    main()
