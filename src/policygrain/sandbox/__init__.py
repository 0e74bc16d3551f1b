"""Calls functions of untrusted programs in a sandbox."""

from .process import Function, TimeLimit, isolation

__all__ = ["Function", "TimeLimit", "isolation"]
