"""Runs untrusted programs in a sandbox: `run_untrusted` for whole programs, or calls of a function in them."""

from __future__ import annotations

from .process import Function, Ran, TimeLimit, isolation, run

__all__ = ["Function", "Ran", "TimeLimit", "isolation", "run_untrusted"]


def run_untrusted(program: str, stdin: str = "", seconds: float = 5.0, mib: int = 512) -> Ran:
    """Run a Python program in a fresh interpreter, apart from everything: no network, files, environment, processes.

    ``seconds`` of processor time (three times as long in wall-clock time), ``mib`` of memory. UserError if this machine
    has no way to keep it apart; it is never run without.
    """
    isolation()
    return run(program, stdin, seconds, mib)
