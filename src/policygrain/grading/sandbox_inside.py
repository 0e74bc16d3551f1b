"""Entry point inside a sandbox, in a fresh interpreter: sets its own limits, then serves the function of a job.

It is started by `python -I -S -B -c SOURCE`, where SOURCE is this file, and reads from standard input the length of a
job and the job, as JSON. It imports only the standard library, nothing of this package. ``encode`` and ``decode`` are
used on both sides: values are sent as JSON, so that reading them executes nothing.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from typing import IO, Any

PLAIN = {bool, str, float, type(None)}  # JSON returns them unchanged; integers may be too long


# ---- values ---------------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """A value of built-in types as JSON; any other object as the name of its type and its truth value."""
    kind = type(value)
    if kind in PLAIN:
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
    for base in (tuple, frozenset, set):
        if isinstance(value, base):
            return {base.__name__: [encode(item) for item in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    subclassed: tuple[Any, ...] = (int, float, str, list)
    for base in subclassed:
        if isinstance(value, base):
            return encode(base(value))
    if hasattr(value, "__next__"):
        return {"iterator": [encode(item) for item in value]}
    return {"object": [kind.__name__, bool(value)]}


class Opaque:
    """An object that stayed in the sandbox; only its type and truth value are known."""

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
    """Processor time, memory, open files: limits of the kernel, which cannot be raised afterwards."""
    for what, value in (
        (resource.RLIMIT_CPU, math.ceil(seconds)),
        (resource.RLIMIT_AS, mib * 2**20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (least, least))


# ---- work -----------------------------------------------------------------------------------------------------------


def serve(program: str, name: str, requests: IO[str], replies: IO[str]) -> None:
    """Execute the program, then call its function ``name`` once for each line of ``requests``."""
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


def main() -> None:
    """Write a byte to say that the sandbox has started, read the job, and run its program.

    The parent sends the job after it has read that byte. So no program runs if the parent ended earlier, when
    bubblewrap would not yet have noticed its end.
    """
    os.write(1, b"\n")
    job = json.loads(exactly(int.from_bytes(exactly(8), "big")))
    limit(job["seconds"], job["mib"])
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    serve(job["program"], job["function"], requests, replies)


def exactly(size: int) -> bytes:
    """Read exactly ``size`` bytes of standard input; the rest are requests."""
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise SystemExit(1)
        data += part
    return data


if __name__ == "__main__":
    main()
