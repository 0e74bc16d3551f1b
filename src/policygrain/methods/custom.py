"""The user's own functions, named "package.module:function"."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..errors import UserError


def import_function(name: str) -> Callable[..., Any]:
    """The function that ``name`` ("package.module:function") stands for. UserError if it cannot be imported."""
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        missing = isinstance(error, ModuleNotFoundError) and module.split(".")[0] == error.name
        hint = " Is its folder on PYTHONPATH?" if missing else ""
        raise UserError(f"{name!r} cannot be imported: {error}.{hint}") from error
    return found
